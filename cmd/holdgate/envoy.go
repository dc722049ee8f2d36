// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdgate/holdgate/envoy"
	"github.com/holdgate/holdgate/internal/backend"
	"github.com/holdgate/holdgate/internal/config"
	"github.com/holdgate/holdgate/internal/manifest"
	"github.com/holdgate/holdgate/internal/regular"
	"github.com/holdgate/holdgate/internal/settings"
)

// configFlags maps fields of envoy.Config to flags.
var configFlags = map[string]string{
	"EdgeListen":      "--edge-listen",
	"AdminListen":     "--admin-listen",
	"ExtProc":         "--extproc",
	"LanesDir":        "--lanes-dir",
	"MaxRequestBytes": "--max-request-bytes",
	"HoldMax":         "--hold-max",
	"HeapBytes":       "--heap-bytes",

	"EdgeCertFile":    "--edge-tls-cert-file",
	"EdgeKeyFile":     "--edge-tls-key-file",
	"ExtProcCertFile": "--extproc-tls-cert-file",
	"ExtProcKeyFile":  "--extproc-tls-key-file",
	"ExtProcCAFile":   "--extproc-tls-ca-file",
	"SecretsDir":      "--output",

	"IdentityMetadata": "--identity-metadata",
	"TrustedHops":      "--trusted-hops",
	"BackendCAs":       "--config",
	"Pools":            "--pool",
	"PoolCAFile":       "--pool-ca-file",
}

func newEnvoyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "envoy",
		Short: "Render an Envoy bootstrap, or check one",
	}
	addCommands(cmd, newEnvoyRenderCommand(), newEnvoyCheckCommand())
	return cmd
}

func newEnvoyRenderCommand() *cobra.Command {
	var (
		c       envoy.Config
		m       manifest.Config
		out     string
		serve   string
		maxBody = settings.Bytes(envoy.DefaultMaxRequestBytes)
		heap    = settings.Bytes(envoy.DefaultHeapBytes)
	)
	cmd := &cobra.Command{
		Use:   "render",
		Short: "Print the bootstrap of an Envoy in front of holdgate serve, or manifests for a gateway",
		Long: "Render prints the bootstrap of an Envoy in front of holdgate serve. With --for it prints\n" +
			"the Kubernetes manifests by which a gateway asks holdgate serve about its requests.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkManifestFlags(cmd.Flags()); err != nil {
				return err
			}
			if maxBody <= 0 || heap <= 0 || c.HoldMax <= 0 {
				return usageError{errors.New("--max-request-bytes, --heap-bytes and --hold-max: must be above 0")}
			}
			c.MaxRequestBytes, c.HeapBytes = int64(maxBody), uint64(heap)
			if cmd.Flags().Changed("for") {
				m.ExtProc, m.Insecure, m.MaxRequestBytes, m.HoldMax = c.ExtProc, c.ExtProcInsecure, c.MaxRequestBytes, c.HoldMax
				return renderManifests(cmd, out, m)
			}
			if err := makePathsAbsolute(&c, out); err != nil {
				return err
			}
			cas, err := backendCAs(serve)
			if err != nil {
				return err
			}
			c.BackendCAs = cas
			text, err := renderBootstrap(c)
			if err != nil {
				return err
			}
			if err := writeSecrets(c); err != nil {
				return err
			}
			return writeOut(cmd, out, text)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.EdgeListen, "edge-listen", "0.0.0.0:8080", "`ip:port` that clients reach")
	flags.StringVar(&c.AdminListen, "admin-listen", "", "where Envoy's admin interface listens, unix:///path or ip:port (default unix://LANES_DIR/"+envoy.AdminSocket+")")
	flags.StringVar(&c.ExtProc, "extproc", "", "where holdgate serve listens, unix:///path or host:port (default unix://LANES_DIR/"+envoy.ExtProcSocket+")")
	flags.StringVar(&c.EdgeCertFile, "edge-tls-cert-file", "", "`file` of the edge's certificate; plain text without it. With it clients may use HTTP/2")
	flags.StringVar(&c.EdgeKeyFile, "edge-tls-key-file", "", "`file` of that certificate's key")
	flags.StringVar(&c.ExtProcCertFile, "extproc-tls-cert-file", "", "`file` of Envoy's certificate for holdgate serve; needed with an --extproc that others can reach")
	flags.StringVar(&c.ExtProcKeyFile, "extproc-tls-key-file", "", "`file` of that certificate's key")
	flags.StringVar(&c.ExtProcCAFile, "extproc-tls-ca-file", "", "`file` of the authorities of holdgate serve's certificate")
	flags.BoolVar(&c.ExtProcInsecure, "extproc-insecure", false, "allow an --extproc that others can reach without TLS: anyone on the way sees all requests, keys and engines' keys, and may change them")
	flags.StringVar(&c.LanesDir, "lanes-dir", "/run/holdgate", "`directory` of "+envoy.ReholdSocket+" and "+envoy.RelaySocket)
	flags.Var(&maxBody, "max-request-bytes", "largest body, as given to holdgate serve")
	flags.DurationVar(&c.HoldMax, "hold-max", envoy.DefaultHoldMax, "longest hold")
	flags.Var(&heap, "heap-bytes", "memory at which Envoy starts to refuse")
	flags.StringVar(&c.IdentityMetadata, "identity-metadata", "", "`namespace` of dynamic metadata that is sent along, as given to holdgate serve")
	flags.IntVar(&c.TrustedHops, "trusted-hops", 0, "`proxies` in front that append to x-forwarded-for: the client's address for the audit log; 0: the peer")
	flags.BoolVar(&c.ProxyProtocol, "proxy-protocol", false, "each connection begins with a PROXY header, which has the client's address")
	flags.StringArrayVar(&c.Pools, "pool", nil, "`NAME=address` of an endpoint picker that chooses the engines of the backend with the URL unix://LANES_DIR/pool-NAME.sock; host:port, https://host:port or unix:///path (may repeat)")
	flags.StringVar(&c.PoolCAFile, "pool-ca-file", "", "`file` with the authorities of the certificates of pickers at https://, which must be for the host; or system")
	flags.BoolVar(&c.PoolInsecure, "pool-insecure", false, "allow pickers that others can reach without TLS, or with certificates that are not checked: anyone on the way may see all requests and answers, and change them")
	flags.StringVar(&serve, "config", "", "`file` of holdgate serve --config: the bootstrap gets what its https backends need")
	flags.StringVarP(&out, "output", "o", "", "`file` to write instead of standard output")
	addManifestFlags(flags, &m)
	return cmd
}

// makePathsAbsolute makes the paths of certificates absolute, since Envoy may run in another
// directory. With certificates, out is required: Envoy reads their paths from files next to
// it.
func makePathsAbsolute(c *envoy.Config, out string) error {
	if c.EdgeCertFile == "" && c.ExtProcCertFile == "" {
		return nil
	}
	if out == "" {
		return usageError{errors.New("--output: is needed with certificates: Envoy reads their paths from files beside it, to notice when they are replaced")}
	}
	c.SecretsDir = filepath.Dir(out)
	for _, path := range []*string{&c.SecretsDir, &c.EdgeCertFile, &c.EdgeKeyFile, &c.ExtProcCertFile, &c.ExtProcKeyFile, &c.ExtProcCAFile} {
		if *path == "" {
			continue
		}
		full, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("finding %s: %w", *path, err)
		}
		*path = full
	}
	return nil
}

// writeSecrets writes the files in which Envoy finds the paths of its certificates.
func writeSecrets(c envoy.Config) error {
	files, err := envoy.Secrets(c)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := regular.Write(filepath.Join(c.SecretsDir, name), text, 0o644); err != nil { // Envoy may run as another user
			return fmt.Errorf("writing the paths of the certificates: %w", err)
		}
	}
	return nil
}

// backendCAs returns the files with the authorities of the https backends in a configuration
// file of holdgate serve.
func backendCAs(file string) ([]string, error) {
	if file == "" {
		return nil, nil
	}
	var c config.Serve
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Flags(flags)
	if err := c.ReadFile(file, flags); err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	return backend.CAs(c.Backends), nil
}

// renderBootstrap renders the bootstrap. Its errors name flags in place of the fields of
// envoy.Config.
func renderBootstrap(c envoy.Config) ([]byte, error) {
	b, err := envoy.Render(c)
	if problems, ok := errors.AsType[settings.Problems](err); ok {
		for i := range problems {
			problems[i].Path = configFlags[problems[i].Path]
		}
		return nil, usageError{problems}
	}
	if err != nil {
		return nil, err
	}
	return envoy.YAML(b)
}

func writeOut(cmd *cobra.Command, file string, text []byte) error {
	if file == "" {
		_, err := cmd.OutOrStdout().Write(text)
		return err
	}
	if err := regular.Write(file, text, 0o644); err != nil { // it holds no secret, and Envoy may run as another user
		return fmt.Errorf("writing what was rendered: %w", err)
	}
	return nil
}
