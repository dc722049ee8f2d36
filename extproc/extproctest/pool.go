// SPDX-License-Identifier: Apache-2.0

package extproctest

import (
	"fmt"
	"sync"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
)

// CountingPool is a buffer pool that detects buffers that are returned twice, or were not
// taken from it.
type CountingPool struct {
	mu    sync.Mutex
	out   map[*byte]int
	wrong []string
}

// Get returns a buffer.
func (p *CountingPool) Get(n int) *[]byte {
	b := make([]byte, n, max(n, 2<<10)) // above grpc's threshold for pooling
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out == nil {
		p.out = map[*byte]int{}
	}
	p.out[&b[:1][0]] = n
	return &b
}

// Put returns a buffer to the pool.
func (p *CountingPool) Put(b *[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := &(*b)[:1][0]
	if _, ok := p.out[at]; !ok {
		p.wrong = append(p.wrong, fmt.Sprintf("%d bytes came back that are not out", len(*b)))
	}
	delete(p.out, at)
	// Who reads it after this reads something else.
	all := (*b)[:cap(*b)]
	for i := range all {
		all[i] = 0xdb
	}
}

// OutNow returns the number of buffers that have not been returned.
func (p *CountingPool) OutNow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.out)
}

// RequireAllBack fails the test if a buffer has not been returned, or was returned twice.
func (p *CountingPool) RequireAllBack(t require.TestingT) {
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Empty(t, p.wrong)
	require.Empty(t, p.out, "buffers are out")
}

// In copies data into buffers of the pool.
func (p *CountingPool) In(data []byte, pieces int) mem.BufferSlice {
	var out mem.BufferSlice
	for i := range pieces {
		part := data[i*len(data)/pieces : (i+1)*len(data)/pieces]
		b := p.Get(len(part))
		copy(*b, part)
		out = append(out, mem.NewBuffer(b, p))
	}
	return out
}
