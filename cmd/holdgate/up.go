// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/up"
)

func newUpCommand() *cobra.Command {
	var file, dir, listen, level, cert, key string
	cmd := &cobra.Command{
		Use:   "up FILE",
		Short: "Run Envoy, holdgate and the models of a file on this machine",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if file != "" {
				args = append(args, file)
			}
			if len(args) != 1 {
				return usageError{errors.New("needs the file of the models, and one alone: holdgate up FILE, such as examples/local/models.yaml")}
			}
			file = args[0]
			f, err := up.Load(file)
			if err != nil {
				return usageError{err}
			}
			if listen != "" {
				f.Listen = listen
			}
			for _, path := range []*string{&cert, &key} {
				if *path == "" {
					continue
				}
				if *path, err = filepath.Abs(*path); err != nil {
					return usageError{fmt.Errorf("finding the edge's certificate: %w", err)}
				}
			}
			if (cert == "") != (key == "") {
				return usageError{errors.New("--edge-tls-cert-file and --edge-tls-key-file: go together")}
			}
			log, err := config.Logger(cmd.ErrOrStderr(), "text", level)
			if err != nil {
				return usageError{err}
			}
			hangups := make(chan os.Signal, 1)
			signal.Notify(hangups, syscall.SIGHUP)
			defer signal.Stop(hangups)
			return up.Run(cmd.Context(), up.Options{
				File: f, Dir: dir, Program: os.Args[0], Hangups: hangups, EdgeCertFile: cert, EdgeKeyFile: key,
				Out: cmd.OutOrStdout(), ErrOut: cmd.ErrOrStderr(), Log: log,
			})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "YAML file of the models, the same as FILE")
	cmd.Flags().StringVar(&dir, "dir", "", "directory of sockets and engine logs; a temporary one by default")
	cmd.Flags().StringVar(&listen, "listen", "", "ip:port that clients reach; the file's by default")
	cmd.Flags().StringVar(&cert, "edge-tls-cert-file", "", "`file` of the certificate that clients see; plain text without it. With it clients may use HTTP/2")
	cmd.Flags().StringVar(&key, "edge-tls-key-file", "", "`file` of that certificate's key")
	cmd.Flags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return cmd
}
