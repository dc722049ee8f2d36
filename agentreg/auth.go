// SPDX-License-Identifier: Apache-2.0

package agentreg

import (
	"crypto/sha256"
	"crypto/subtle"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/holdgate/holdgate/agentreg/protocol"
)

// TokenAuth returns an interceptor that accepts streams with one of the tokens as a bearer
// token, or all streams if there are no tokens. It calls tokens for each new stream, so a
// change takes effect at once. Streams of the gRPC health service need no token.
func TokenAuth(tokens func() []string) grpc.StreamServerInterceptor {
	return tokenAuth(tokens).intercept
}

type tokenAuth func() []string

func (tokens tokenAuth) intercept(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if strings.HasPrefix(info.FullMethod, "/"+healthpb.Health_ServiceDesc.ServiceName+"/") {
		return handler(srv, ss)
	}
	md, _ := metadata.FromIncomingContext(ss.Context())
	headers := md.Get(protocol.TokenKey)
	switch {
	case tokenKnown(tokens(), headers):
		return handler(srv, ss)
	case len(headers) == 0:
		return status.Error(codes.Unauthenticated, "the token is missing (--token-file)")
	}
	return status.Error(codes.Unauthenticated, "the token is unknown (--token-file)")
}

// tokenKnown reports whether headers have one of the tokens. It takes the same time for
// all wrong tokens of the same length.
func tokenKnown(tokens, headers []string) bool {
	if len(tokens) == 0 {
		return true
	}
	if len(headers) != 1 {
		return false
	}
	scheme, given, _ := strings.Cut(headers[0], " ")
	if !strings.EqualFold(scheme, protocol.TokenScheme) || given == "" {
		return false
	}
	sum := sha256.Sum256([]byte(given))
	known := 0
	for _, t := range tokens {
		want := sha256.Sum256([]byte(t))
		known |= subtle.ConstantTimeCompare(sum[:], want[:])
	}
	return known == 1
}
