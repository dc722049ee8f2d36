// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// It is not parallel: memory that other tests free would be subtracted from the memory
// that this test touches.
func TestResidentBytesSeesWhatWasTouched(t *testing.T) {
	debug.FreeOSMemory()
	before, err := residentBytes(os.Getpid())
	require.NoError(t, err)
	block, err := syscall.Mmap(-1, 0, 64<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Munmap(block)) }()
	for i := range block {
		block[i] = 1
	}
	after, err := residentBytes(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, after-before, int64(48<<20))
}

func TestCPUTimeGrowsWithWork(t *testing.T) {
	t.Parallel()
	before, err := cpuTimeOf([]int{os.Getpid()})
	require.NoError(t, err)
	// Each iteration uses CPU; if that is never measured, the test times out.
	for after := before; after <= before; {
		after, err = cpuTimeOf([]int{os.Getpid()})
		require.NoError(t, err)
	}
}

func TestAProcessThatIsGoneIsAnError(t *testing.T) {
	t.Parallel()
	_, err := cpuTime(1 << 30)
	require.Error(t, err)
	_, err = residentBytes(1 << 30)
	require.Error(t, err)
}
