// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/up"
)

func newUpCommand() *cobra.Command {
	var file, dir, listen, level, cert, key string
	cmd := &cobra.Command{
		Use:   "up -f FILE",
		Short: "Run Envoy, holdgate and the models of a file on this machine",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usageError{fmt.Errorf("-f is required: the file of the models, such as examples/local/models.yaml")}
			}
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
			return up.Run(cmd.Context(), up.Options{
				File: f, Dir: dir, Out: cmd.OutOrStdout(), ErrOut: cmd.ErrOrStderr(), Log: log,
				EdgeCertFile: cert, EdgeKeyFile: key,
			})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "YAML file of the models")
	cmd.Flags().StringVar(&dir, "dir", "", "directory of sockets and engine logs; a temporary one by default")
	cmd.Flags().StringVar(&listen, "listen", "", "ip:port that clients reach; the file's by default")
	cmd.Flags().StringVar(&cert, "edge-tls-cert-file", "", "`file` of the certificate that clients see; plain text without it. With it clients may use HTTP/2")
	cmd.Flags().StringVar(&key, "edge-tls-key-file", "", "`file` of that certificate's key")
	cmd.Flags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return cmd
}
