// SPDX-License-Identifier: Apache-2.0

// Package hop makes and checks the token that a redirected request carries to
// a sibling. Clients drop the Authorization header when a redirect leads to
// another host, so the token stands for it: it says which key was
// authenticated, how often the request was sent on, and which request that was.
//
// It is a JWT with HS256, signed by the first of the secrets that the sites
// share and accepted under any of them. It lives for [Life], and for [Leeway]
// more because clocks differ, whatever it says. It holds for one site, one method,
// one path with its query (without the parameter that carries the token), and one
// body.
//
// The parts come at different times, so the check has two steps:
// [Secrets.VerifyHead] before any of the body is read, and
// [Verified.VerifyBody] at its end. A request must pass both. Errors are of
// the class [ErrForged], [ErrExpired] or [ErrMismatch].
//
// The package starts no goroutine, and a Secrets never changes.
package hop
