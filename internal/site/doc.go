// SPDX-License-Identifier: Apache-2.0

// Package site is what the routers of one site know of one another, on top of
// [github.com/holdgate/holdgate/internal/shared]. Each file has one subject, and one type for
// it. A router whose server does not answer decides alone; the comment of each type says what
// that means.
package site
