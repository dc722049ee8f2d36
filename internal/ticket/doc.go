// SPDX-License-Identifier: Apache-2.0

// Package ticket signs and accepts tickets. A held request that the relay sends back through
// a gateway carries one, so that the router lets it pass: it was decided, charged and counted
// when it first came.
//
// A ticket is a JWT with HS256. It is valid for [Life], once, for one method, one path with
// its query, and one body. Its key is made at the start, so that no other process accepts it;
// with the secrets that the routers of a site share it is derived from them, and each router
// accepts a ticket once, or all together once: see [Office.Share].
//
// The head of a request arrives before its body, so there are two checks: [Office.Accept]
// before the body is read, and [Accepted.CheckBody] after it. Every error wraps [ErrForged],
// [ErrExpired], [ErrUsed] or [ErrMismatch].
//
// The package starts no goroutine.
package ticket
