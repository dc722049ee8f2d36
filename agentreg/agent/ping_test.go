// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdgate/holdgate/agentreg/protocol"
)

// cable is the agent's end of a connection that can lose all that is sent either
// way, its end too, as one between machines that lost their power.
type cable struct {
	net.Conn
	cut          atomic.Bool
	leave        sync.Once
	left         chan struct{} // the agent closed it
	routerHungUp atomic.Bool
}

func (c *cable) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if !c.cut.Load() {
			return n, err
		}
		if err != nil {
			c.routerHungUp.Store(true)
			<-c.left
			return 0, net.ErrClosed
		}
	}
}

func (c *cable) Write(p []byte) (int, error) {
	if c.cut.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *cable) Close() error {
	c.leave.Do(func() { close(c.left) })
	if c.cut.Load() {
		return nil
	}
	return c.Conn.Close()
}

func TestDeadConnectionIsNoticedByBothEndsWithinTheLivenessTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		reg, _ := n.router(nil, "127.0.0.1:9002")
		n.health.Store(http.StatusOK)
		cfg := n.config()
		cables := make(chan *cable, 2)
		cfg.dial = func(address string) (net.Conn, error) {
			conn, err := n.dial(address)
			c := &cable{Conn: conn, left: make(chan struct{})}
			cables <- c
			return c, err
		}
		n.run(cfg)
		after(time.Minute)
		c := <-cables
		require.Empty(t, cables, "nobody minds the pings")

		c.cut.Store(true)
		after(protocol.DefaultLiveness + time.Millisecond)
		require.True(t, c.routerHungUp.Load())
		after(maxLinkBackoff)
		require.Len(t, cables, 1)
		require.Equal(t, 1, reg.Serving(llama))
	})
}
