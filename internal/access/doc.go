// SPDX-License-Identifier: Apache-2.0

// Package access reads the keys file, finds the key of a request, and counts requests
// against the quotas of keys, alone or by a [Limiter] together with other routers.
//
// A keys file holds SHA-256 hashes, never keys. [Parse] reads one; [Load] reads one and
// again whenever the file changes. [Keys] and [Key] are immutable, so a request may keep
// the key that it started with. Only the tokens of a quota change, by [Key.Charge]. They
// belong to the id of a key: when a file is read again, a key whose id is in the old and
// in the new file keeps its tokens and gets its new limits. The tokens of a removed key
// are lost.
//
// No message of this package repeats a key_hash, the name of an unknown field or a long
// value, because a key might have been pasted there.
package access
