package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/user"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/console"
	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/operate/logins"
)

const consoleAbout = `Who may use the operators' console that "pipeline run" serves at console.listen.

  pipeline console link            prints a link that logs in once, at any node on the database
  pipeline console logout-all      ends every login and every link on the database, within seconds
  pipeline console hash-password   reads a password from standard input, and prints its hash for console.users`

func consoleCommand(ctx context.Context, args []string, env cli.Env) error {
	fs := cli.NewFlags(env, "console", consoleAbout, "pipeline console link --role viewer --name ann")
	name := fs.String("name", userName(), "`name` that the link logs in by")
	role := fs.String("role", "operator", "viewer or operator, for the link")
	var within time.Duration
	cli.Duration(fs, &within, "within", 10*time.Minute, "how `long` the link can be used")
	settings := databaseFlags(fs)
	action, _, err := cli.ParseAction(fs, args, map[string]int{"link": 0, "logout-all": 0, "hash-password": 0})
	if err != nil {
		return err
	}
	if action == "hash-password" {
		return hashPassword(env)
	}
	switch {
	case *role != "viewer" && *role != "operator":
		return cli.Usagef("--role: %q is neither viewer nor operator", *role)
	case *name == "" || len(*name) > 100:
		return cli.Usagef("--name: has to have 1 to 100 bytes")
	case within <= 0 || within > 24*time.Hour:
		return cli.Usagef("--within: %s; has to be positive and at most 24h", within)
	}
	cfg, err := settings(env.Environ)
	if err != nil {
		return err
	}
	return withDatabase(ctx, cfg, func(conn *pgx.Conn) error {
		if action == "logout-all" {
			err := logins.EndAll(ctx, conn)
			if err == nil {
				fmt.Fprintln(env.Stdout, "console: every login has ended")
			}
			return err
		}
		secret, err := logins.Link(ctx, conn, *name, *role, within)
		if err == nil {
			fmt.Fprintln(env.Stdout, console.Link(cmp.Or(cfg.console.Origin, "http://"+cfg.console.Listen), secret))
		}
		return err
	})
}

// hashPassword reads one line.
func hashPassword(env cli.Env) error {
	line, err := bufio.NewReader(io.LimitReader(env.Stdin, 1<<10)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	hash, err := console.HashPassword(strings.TrimRight(line, "\r\n"))
	if err == nil {
		fmt.Fprintln(env.Stdout, hash)
	}
	return err
}

// userName is who runs the command.
func userName() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return "link"
}
