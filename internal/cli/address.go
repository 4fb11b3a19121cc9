package cli

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

const (
	masked   = "xxxxx"
	notShown = "(not shown: it can't be parsed, so its password can't be told from the rest)"
)

// open are the parameters of a connection string whose values are shown. Any other, options among them, may hold a
// secret, or be a piece of a password that was not escaped.
var open = []string{"host", "hostaddr", "port", "dbname", "database", "user", "application_name", "connect_timeout",
	"client_encoding", "target_session_attrs", "sslmode", "sslrootcert", "sslcert", "sslkey", "sslnegotiation",
	"search_path", "timezone", "default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity",
	"min_protocol_version", "max_protocol_version", "keepalives", "channel_binding", "gssencmode"}

// MaskURL hides what may be secret in a PostgreSQL connection string, in its URL and in its key=value form. It shows
// nothing at all of a text that it can't tell apart with certainty.
func MaskURL(s string) string {
	shown, ok := editAddress(s, func(name string) (string, bool) {
		if slices.Contains(open, name) || strings.HasPrefix(name, "pool_") {
			return "", false
		}
		return masked, true
	})
	if !ok {
		return notShown
	}
	return shown
}

// StripPassword takes the passwords out of a PostgreSQL connection string, in its URL and in its key=value form. What
// is no such string becomes empty.
func StripPassword(s string) string {
	stripped, ok := editAddress(s, func(name string) (string, bool) { return "", strings.HasSuffix(name, "password") })
	if !ok {
		return ""
	}
	return stripped
}

// AddressError returns what is wrong with a connection string, of which the driver says err: nil for nothing, and an
// error without what may be secret in it otherwise. A string that can't be told apart with certainty is wrong even if
// the driver takes it: it may have taken a part of the password for something else.
func AddressError(address string, err error) error {
	_, ok := editAddress(address, func(string) (string, bool) { return "", false })
	switch {
	case !ok && strings.Contains(address, "://"):
		return errors.New("database-url: it can't be read; in a password write @ as %40, / as %2F, ? as %3F, # as %23 " +
			"and % as %25")
	case !ok:
		return errors.New("database-url: neither a URL like postgres://user:password@host/database nor a list of " +
			"key=value; a value with spaces stands in single quotes")
	case err == nil:
		return nil
	}
	text := err.Error() // of the driver: cannot parse `...`: why
	why := strings.TrimLeft(text[strings.LastIndex(text, "`: ")+1:], ": ")
	return fmt.Errorf("database-url: %s: %s", MaskURL(address), why)
}

// editAddress replaces the values of parameters for which change is true; those that become empty are left out. The
// password of a URL is a parameter of that name. It reports false for what can't be told apart.
func editAddress(s string, change func(name string) (value string, changes bool)) (edited string, ok bool) {
	if !strings.Contains(s, "://") {
		return editPairs(s, change)
	}
	u, err := url.Parse(s)
	// An @ behind the host belongs to a password with an unescaped slash, question mark or hash.
	if err != nil || u.Opaque != "" || u.Fragment != "" || strings.Contains(u.Path+u.RawQuery, "@") {
		return "", false
	}
	if _, has := u.User.Password(); has {
		switch value, changes := change("password"); {
		case changes && value == "":
			u.User = url.User(u.User.Username())
		case changes:
			u.User = url.UserPassword(u.User.Username(), value)
		}
	}
	var query []string
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		name, _, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(name)
		if err != nil {
			return "", false
		}
		value, changes := change(name)
		switch {
		case !changes || pair == "":
			query = append(query, pair)
		case value != "":
			query = append(query, url.QueryEscape(name)+"="+value)
		}
	}
	u.RawQuery = strings.Join(query, "&")
	return u.String(), true
}

// pairs are the key=value form: names, and values that may be quoted and in which a backslash escapes what follows it.
var pairs = regexp.MustCompile(`^\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)(?:\s+|$)`)

func editPairs(s string, change func(name string) (value string, changes bool)) (edited string, ok bool) {
	var all []string
	for rest := s; strings.TrimSpace(rest) != ""; {
		m := pairs.FindStringSubmatch(rest)
		if m == nil {
			return "", false
		}
		rest = rest[len(m[0]):]
		value, changes := change(m[1])
		switch {
		case !changes:
			all = append(all, m[1]+"="+m[2])
		case value != "":
			all = append(all, m[1]+"="+value)
		}
	}
	return strings.Join(all, " "), true
}
