// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTicks is USER_HZ, the ticks of a second, which Linux fixes at 100 for /proc.
const clockTicks = 100

// cpuTime returns the user and system time that the process has used.
func cpuTime(pid int) (time.Duration, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading CPU time: %w", err)
	}
	// The command name in parentheses may contain spaces; the fields after it do not.
	end := bytes.LastIndexByte(content, ')')
	fields := strings.Fields(string(content[end+1:]))
	if end < 0 || len(fields) < 13 {
		return 0, fmt.Errorf("reading CPU time: %s has an unknown form", path)
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading CPU time from %s: %w", path, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / clockTicks), nil
}

// cpuTimeOf returns the sum of cpuTime over several processes.
func cpuTimeOf(pids []int) (time.Duration, error) {
	var total time.Duration
	for _, pid := range pids {
		t, err := cpuTime(pid)
		if err != nil {
			return 0, err
		}
		total += t
	}
	return total, nil
}

// residentBytes returns the process's resident set, counted page by page by the kernel
// rather than from its batched counters.
func residentBytes(pid int) (int64, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/smaps_rollup"
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading resident memory: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		rest, found := strings.CutPrefix(line, "Rss:")
		if !found {
			continue
		}
		number, _ := strings.CutSuffix(strings.TrimSpace(rest), " kB")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading resident memory from %s: %w", path, err)
		}
		return n << 10, nil
	}
	return 0, fmt.Errorf("reading resident memory: %s has no Rss line", path)
}
