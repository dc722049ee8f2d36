// SPDX-License-Identifier: Apache-2.0

// Package access says who may ask, for what, and how often: the keys file, the
// key behind a request, and the quotas.
//
// A keys file holds SHA-256 hashes, never keys. [Parse] reads one, [Load] keeps
// one in step with its file. [Keys] and [Key] never change, so a request may keep
// the key it began with; only the tokens of a quota do, behind [Key.Charge]. They
// belong to the id of a key: when a file is read again, a key whose id is in the
// old and in the new one goes on with the tokens it had, and with its new limits.
// A key that is gone takes its tokens along.
//
// No message of this package repeats a key_hash, the name of an unknown field or
// a long value as they are, since a key might have been pasted there.
package access
