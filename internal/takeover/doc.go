// SPDX-License-Identifier: Apache-2.0

// Package takeover is the connection over which a process hands its work over to the process
// that replaces it on the same machine: a unix socket that only processes of the same user may
// connect to. The old process sends the sockets that it listens on, so that both accept from the
// same queue of connections and none is refused in between. The processes then send messages:
//
//	old  sockets, Offer      which addresses they are for
//	new  Ready               all its parts are made
//	old  Agents              its agents were told to connect to the new process, too
//	new  Commit              they have connected
//	old  Left                it accepts no connection any more; its map
//	new  Serving             it accepts all connections
//
// If the connection breaks before Serving, the old process goes on as if nothing had happened.
// After Serving the new process sends the log entries of requests that it does not know, and the
// old one each second what its models need, until its last request has ended.
package takeover
