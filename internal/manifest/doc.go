// SPDX-License-Identifier: Apache-2.0

// Package manifest renders the Kubernetes objects by which a gateway asks Holdgate about
// requests. Every value that is put into a template is checked before, so that it can be
// nothing but the name, the number or the path that it should be.
package manifest
