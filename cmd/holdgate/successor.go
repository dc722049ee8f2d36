// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/rs/zerolog"

	"github.com/holdgate/holdgate/internal/proc"
)

// successor starts the process that takes over from this one.
type successor struct {
	program string // its path; a newer version may be there by then
	log     zerolog.Logger
}

// newSuccessor must be called before anything changes the working directory.
func newSuccessor(log zerolog.Logger) (*successor, error) {
	program, err := exec.LookPath(os.Args[0])
	if err != nil {
		return nil, fmt.Errorf("--takeover: finding this program: %w", err)
	}
	return &successor{program: program, log: log}, nil
}

// start starts the program with the command line, environment and output of this process, which
// it may outlive.
func (s *successor) start() {
	cmd := exec.Command(s.program, os.Args[1:]...) //nolint:gosec,noctx // this program itself, which is to outlive this process
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		s.log.Error().Err(err).Msg("starting the process that takes over: this one goes on")
		return
	}
	s.log.Info().Int("pid", cmd.Process.Pid).Msg("started a process that takes over")
	go func() {
		if err := cmd.Wait(); err != nil {
			s.log.Error().Str("cause", proc.Describe(err)).Msg("the process that was to take over has ended")
		}
	}()
}
