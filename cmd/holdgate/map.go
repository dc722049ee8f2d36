// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdgate/holdgate/internal/admin/client"
	"github.com/holdgate/holdgate/internal/local"
	"github.com/holdgate/holdgate/sitemap"
)

// adminFlags are the flags of the commands that call a router.
type adminFlags struct {
	url, tokenFile string
}

func (f *adminFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.url, "admin", "", "`URL` of the router's admin API, http://host:port or unix:///path. By default that of the router that this user runs on this machine, if it is found below $XDG_RUNTIME_DIR, else "+usualAdmin)
	cmd.Flags().StringVar(&f.tokenFile, "token-file", "", "`file` with the token for the admin API")
}

// usualAdmin is the address of the admin API of a router with the default settings.
const usualAdmin = "http://127.0.0.1:9003"

// address returns the address of the router: the one of --admin, else of the only one that this
// user runs here.
func (f *adminFlags) address() (string, error) {
	if f.url != "" {
		return f.url, nil
	}
	found, err := local.Find()
	switch {
	case err != nil:
		return "", usageError{fmt.Errorf("--admin is not given: %w", err)}
	case len(found.Admins) > 1:
		return "", usageError{fmt.Errorf("several routers run here: choose one with --admin: %s", strings.Join(found.Admins, ", "))}
	case len(found.Admins) == 1:
		return found.Admins[0], nil
	case len(found.Unsafe) > 0:
		return "", usageError{fmt.Errorf("--admin is not given, and what names a router here is not used: %s", strings.Join(found.Unsafe, "; "))}
	}
	return usualAdmin, nil
}

func (f *adminFlags) client() (*client.Client, error) {
	token, err := readToken(f.tokenFile)
	if err != nil {
		return nil, usageError{fmt.Errorf("--token-file: %w", err)}
	}
	address, err := f.address()
	if err != nil {
		return nil, err
	}
	c, err := client.New(address, token)
	if err != nil {
		return nil, usageError{fmt.Errorf("--admin: %w", err)}
	}
	return c, nil
}

func newMapCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "map",
		Short: "Push, get or check the sibling map",
	}
	addCommands(cmd, newMapPushCommand(), newMapGetCommand(), newMapCheckCommand())
	return cmd
}

func newMapPushCommand() *cobra.Command {
	var (
		flags adminFlags
		how   client.Push
		file  string
	)
	cmd := &cobra.Command{
		Use:   "push -f FILE",
		Short: "Put a sibling map in force at a router",
		Long: "Push sends a map (- is standard input) to a router, which puts it in force as a\n" +
			"whole or refuses it and says what is wrong with it.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usageError{errors.New("-f is required: the file of the map, or - for standard input")}
			}
			c, err := flags.client()
			if err != nil {
				return err
			}
			data, err := readMap(cmd, file)
			if err != nil {
				return err
			}
			sum, err := c.PushMap(cmd.Context(), data, how)
			if err != nil {
				return printRefusal(cmd.ErrOrStderr(), err)
			}
			verb := "applied"
			if sum.Unchanged {
				verb = "unchanged"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", verb, describe(sum, "here"))
			return nil
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVarP(&file, "file", "f", "", "`file` of the map, or - for standard input")
	cmd.Flags().BoolVar(&how.Force, "force", false, "put it in force even if its generation is not newer")
	cmd.Flags().StringVar(&how.IfMatch, "if-match", "", "push only if the map with this `ETag` is in force")
	return cmd
}

func newMapGetCommand() *cobra.Command {
	var flags adminFlags
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Print the sibling map that is in force at a router",
		Long:  "Get prints the map on standard output, and where it came from on standard error.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := flags.client()
			if err != nil {
				return err
			}
			m, err := c.Map(cmd.Context())
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s %v ago, ETag %s\n", m.Source, m.Age.Round(time.Second), m.ETag)
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", m.JSON)
			return err
		},
	}
	flags.register(cmd)
	return cmd
}

func newMapCheckCommand() *cobra.Command {
	var site string
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Report what is wrong with a sibling map, without a router",
		Long: "Check reads a map (- is standard input) as the router of a site would, and prints\n" +
			"every problem with its path.",
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := readMap(cmd, args[0])
			if err != nil {
				return err
			}
			sum, err := sitemap.NewStore(site, nil).Push(data, false)
			if problems, ok := errors.AsType[sitemap.Problems](err); ok {
				return printProblems(cmd.OutOrStdout(), problems, site == "")
			}
			if err != nil {
				return err
			}
			where := ""
			if site != "" {
				where = "at " + site
			}
			fmt.Fprintf(cmd.OutOrStdout(), "ok: %s\n", describe(sum, where))
			return nil
		},
	}
	cmd.Flags().StringVar(&site, "site-id", "", "site of the router, which needs no entry in sites")
	return cmd
}

// readMap reads a map from a file, or from standard input if file is "-". It reads one byte
// more than a map may have, so that a larger map is an error and not truncated.
func readMap(cmd *cobra.Command, file string) (data []byte, err error) {
	in := cmd.InOrStdin()
	if file != "-" {
		f, err := os.Open(file) //nolint:gosec // the user names the file
		if err != nil {
			return nil, fmt.Errorf("reading the map: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	data, err = io.ReadAll(io.LimitReader(in, sitemap.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading the map: %w", err)
	}
	if len(data) > sitemap.MaxBytes {
		return nil, fmt.Errorf("reading the map: %w", sitemap.ErrTooLarge)
	}
	return data, nil
}

// printRefusal prints the problems that a router found in a map, and returns an error with
// their number. Any other error it returns as it is.
func printRefusal(out io.Writer, err error) error {
	answer, ok := errors.AsType[*client.Error](err)
	if !ok || len(answer.Problems) == 0 {
		return err
	}
	for _, line := range answer.Problems.Lines() {
		fmt.Fprintln(out, line)
	}
	return fmt.Errorf("the router refused the map: %s", count(len(answer.Problems), "problem"))
}

// printProblems prints the problems of a map and returns an error with their number. If
// noSite is set, it adds a hint about --site-id when a problem may be due to its absence.
func printProblems(out io.Writer, problems sitemap.Problems, noSite bool) error {
	for _, line := range problems.Lines() {
		fmt.Fprintln(out, line)
	}
	unlisted := slices.ContainsFunc(problems, func(p sitemap.Problem) bool { return strings.HasSuffix(p.Path, ".site") })
	if noSite && unlisted {
		fmt.Fprintln(out, "--site-id names a site that needs no entry in sites")
	}
	return fmt.Errorf("the map has %s", count(len(problems), "problem"))
}

// describe summarizes a map. If where is empty, it leaves out the number of models that may
// be held, because that depends on the site.
func describe(sum sitemap.Summary, where string) string {
	text := fmt.Sprintf("generation %d, %s, %s", sum.Generation, count(sum.Sites, "site"), count(sum.Placements, "placement"))
	if where == "" {
		return text
	}
	return fmt.Sprintf("%s, %s that may be held %s", text, count(sum.Holdable, "model"), where)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
