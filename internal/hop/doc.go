// SPDX-License-Identifier: Apache-2.0

// Package hop signs and verifies the token that a redirected request carries to a sibling
// site. Clients drop the Authorization header when a redirect leads to another host, so the
// token replaces it. It contains the id of the authenticated key, the number of redirects,
// and hashes of the request.
//
// The token is a JWT with HS256. It is signed with the first of the secrets that the sites
// share, and accepted if it is signed with any of them. It is valid for [Life], plus
// [Leeway] because clocks differ, whatever its own expiry. It is valid for one site, one
// method, one path with its query (without the parameter that carries the token), and one
// body.
//
// The head of a request arrives before its body, so there are two checks, and a request must
// pass both: [Secrets.VerifyHead] before the body is read, and [Verified.VerifyBody] after
// it. Every error wraps [ErrForged], [ErrExpired] or [ErrMismatch].
//
// The package starts no goroutine, and a Secrets is immutable.
package hop
