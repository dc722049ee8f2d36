// SPDX-License-Identifier: Apache-2.0

// Command bench measures what Holdgate costs. It uses loopback and unix sockets only,
// and ends every process it starts.
//
//	bench [speed]  backend, Envoy, Envoy with the floor, Envoy with Holdgate
//	bench need     from a request's first byte to whoever can wake its model
//	bench wake     from a registration to the first byte of each held request
//	bench memory   what a held request costs in Holdgate and in Envoy
//	bench scale    what grows with placements, agents, held requests and keys
//
// Backend and floor are subcommands too, because each is a separate process.
// docs/performance.md explains the numbers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/holdgate/holdgate/bench/floor"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:gocritic // stop need not run at exit
	}
}

func run(ctx context.Context, args []string) error {
	name := "speed"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	commands := map[string]func(context.Context, []string) error{
		"speed": runSpeed, "need": runNeed, "wake": runWake, "memory": runMemory, "scale": runScale, "backend": runBackend, "floor": runFloor,
	}
	command, found := commands[name]
	if !found {
		return fmt.Errorf("unknown subcommand %q: want speed, need, wake, memory or scale", name)
	}
	return command(ctx, args)
}

// runFloor is the subcommand "floor".
func runFloor(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("floor", flag.ContinueOnError)
	socket := flags.String("socket", "", "path of the unix socket")
	destination := flags.String("destination", "", "ip:port that every request is sent to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *socket == "" || *destination == "" {
		return errors.New("-socket and -destination are required")
	}
	return floor.Run(ctx, *socket, *destination)
}
