// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/internal/app"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/local"
)

func newServeCommand() *cobra.Command {
	c := config.Serve{Version: version}
	var file string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the ext_proc service, the agent service and the admin API",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := readSettings(cmd, &c, file); err != nil {
				return err
			}
			log, err := config.Logger(cmd.ErrOrStderr(), c.LogFormat, c.LogLevel)
			if err != nil {
				return usageError{err}
			}
			return serve(cmd.Context(), &c, log)
		},
	}
	serveFlags(cmd, &c, &file)
	return cmd
}

// serveFlags declares the settings of serve.
func serveFlags(cmd *cobra.Command, c *config.Serve, file *string) {
	c.Flags(cmd.Flags())
	cmd.Flags().StringVar(file, "config", "", "YAML file with the same names as the flags; a flag on the command line wins")
}

// readSettings reads the file, if there is one, and the environment, and checks all values.
func readSettings(cmd *cobra.Command, c *config.Serve, file string) error {
	if file != "" {
		if err := c.ReadFile(file, cmd.Flags()); err != nil {
			return usageError{fmt.Errorf("--config: %w", err)}
		}
	}
	if err := config.ReadEnvironment(cmd.Flags()); err != nil {
		return usageError{err}
	}
	if err := c.Validate(); err != nil {
		return usageError{err}
	}
	return nil
}

// serve runs until ctx ends or a server fails.
func serve(ctx context.Context, c *config.Serve, log zerolog.Logger) error {
	replace := func() {
		log.Error().Msg("SIGUSR2: this process was started without --takeover, so no other can take over from it")
	}
	if c.Takeover {
		next, err := newSuccessor(log)
		if err != nil {
			return err
		}
		replace = next.start
	}
	a, err := app.New(c, log) //nolint:contextcheck // webhooks outlive the start; Stop ends them
	if err != nil {
		return err
	}
	if err := a.Start(ctx); err != nil {
		return err
	}
	here, err := local.Announce(adminURL(c.AdminListen, a.AdminAddr()))
	if err != nil {
		log.Warn().Err(err).Msg("commands of this user do not find this router without --admin")
	}
	defer here.Close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGUSR2)
	defer signal.Stop(signals)
	notifyMain(log)
	failure := untilEnd(ctx, a, replace, signals, log)
	if !a.Replaced() {
		notifyStopping(log)
	}
	if err := a.Stop(context.WithoutCancel(ctx)); err != nil {
		log.Error().Err(err).Msg("shutting down")
	}
	return failure
}

// adminURL returns the URL by which programs of this machine call an admin API that listens at an
// address. listen is the setting.
func adminURL(listen, address string) string {
	if strings.HasPrefix(listen, "unix://") {
		return listen
	}
	at, err := netip.ParseAddrPort(address)
	switch {
	case err != nil || !at.Addr().IsUnspecified():
		return "http://" + address
	case at.Addr().Is4():
		return fmt.Sprintf("http://127.0.0.1:%d", at.Port())
	}
	return fmt.Sprintf("http://[::1]:%d", at.Port())
}

// untilEnd waits until ctx ends, a server fails, or the last request after a takeover has ended. On
// SIGHUP it reads files again, and on SIGUSR2 it calls replace.
func untilEnd(ctx context.Context, a *app.App, replace func(), signals <-chan os.Signal, log zerolog.Logger) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.HandedOver():
			return nil
		case err := <-a.Failed():
			return err
		case s := <-signals:
			if s == syscall.SIGUSR2 {
				replace()
				continue
			}
			if err := a.Reload(); err != nil {
				log.Error().Err(err).Msg("reloading")
			}
		}
	}
}
