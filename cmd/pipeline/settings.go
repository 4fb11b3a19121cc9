package main

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/spell"
	"sluice.example/sluice/pipeline/buffer"
)

// setting is one value that an operator may set, in a file, in the environment or by a flag, under one name. The table
// in config.go is the only place that lists them: parsing, "pipeline config", --help and docs/reference.md all come
// from it.
type setting struct {
	// key is "stage.name" in kebab case. The flag is --stage.name, the variable PIPELINE_STAGE_NAME.
	key string
	// value points to where the setting lives: *string, *[]string, *bool, *time.Duration, *int, *int32, *int64 or
	// *float64.
	value any
	// unit is what a number counts; "bytes" makes sizes such as 64MiB readable.
	unit string
	// auto is true where a number may also be "auto", which is kept as buffer.Auto.
	auto bool
	doc  string
	// mask hides the secret part of the value; nil where there is none.
	mask func(string) string
	// source is where the value in force comes from.
	source string
}

// text is the value as cli.ParseValue reads it, for print where secrets are masked.
func (s *setting) text() string {
	if s.auto && s.isAuto() {
		return "auto"
	}
	text := cli.FormatValue(s.value, s.unit)
	if s.mask != nil && text != "" {
		return s.mask(text)
	}
	return text
}

func (s *setting) isAuto() bool {
	switch v := s.value.(type) {
	case *int:
		return *v == buffer.Auto
	case *time.Duration:
		return *v == buffer.Auto
	}
	return false
}

func (s *setting) isBool() bool {
	_, ok := s.value.(*bool)
	return ok
}

// set parses text into the value. On failure the value keeps what it had.
func (s *setting) set(text, source string) error {
	read := text
	if s.auto && strings.TrimSpace(text) == "auto" {
		if read = strconv.Itoa(buffer.Auto); s.unit == "" {
			read += "ns"
		}
	}
	if err := cli.ParseValue(s.value, s.unit, read); err != nil {
		if s.mask != nil {
			err = errors.New("can't be parsed")
		}
		return fmt.Errorf("%s: %w", s.key, err)
	}
	s.source = source
	return nil
}

// envName is the environment variable of a key.
func envName(key string) string {
	return "PIPELINE_" + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(key))
}

// loadSettings fills the settings from a file, then the environment, then flags, each overriding the one before, and
// reports every fault at once. flags are texts by the name of the setting, and "config" names the file.
func loadSettings(settings []*setting, flags map[string]string, environ []string) error {
	byKey := make(map[string]*setting, len(settings))
	keys := make([]string, 0, len(settings)+1)
	for _, s := range settings {
		byKey[s.key] = s
		keys = append(keys, s.key)
	}
	keys = append(keys, "config")

	var errs []error
	env, envErrs := splitEnvironment(settings, keys, environ)

	file := env["config"]
	if f, ok := flags["config"]; ok {
		file = f
	}
	if file != "" {
		errs = append(errs, loadFile(byKey, keys, file))
	}
	errs = append(errs, envErrs...)
	for _, s := range settings {
		if text, ok := env[s.key]; ok {
			source := "environment " + envName(s.key)
			if s.key == "database-url" && !hasVariable(environ, source[len("environment "):]) {
				source = "environment DATABASE_URL"
			}
			if err := s.set(text, source); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", source, cli.FromService(envName(s.key), text, err)))
			}
		}
	}
	for _, s := range settings {
		if text, ok := flags[s.key]; ok {
			if err := s.set(text, "flag --"+s.key); err != nil {
				errs = append(errs, fmt.Errorf("flag --%s: %w", s.key, err))
			}
		}
	}
	return errors.Join(errs...)
}

// settingFlag is the flag of a setting. It keeps the text that it is given, since the file and the environment, over
// which it counts, are read later.
type settingFlag struct {
	text string
	// bool is true for a setting that is true or false, which needs no value.
	bool bool
}

func (f *settingFlag) String() string        { return f.text }
func (f *settingFlag) Set(text string) error { f.text = text; return nil }
func (f *settingFlag) IsBoolFlag() bool      { return f.bool }

// addFlags adds a flag for every setting, and --config. The returned func returns the text of those that were set, once
// the flags are parsed.
func addFlags(fs *flag.FlagSet, settings []*setting) func() map[string]string {
	fs.Var(&settingFlag{}, "config", "configuration file (YAML)")
	for _, s := range settings {
		fs.Var(&settingFlag{bool: s.isBool()}, s.key, s.doc)
		if d := s.text(); d != "" {
			fs.Lookup(s.key).DefValue = d + unitSuffix(s)
		}
	}
	return func() map[string]string {
		texts := map[string]string{}
		fs.Visit(func(f *flag.Flag) { texts[f.Name] = f.Value.String() })
		return texts
	}
}

func hasVariable(environ []string, name string) bool {
	return slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, name+"=") })
}

func splitEnvironment(settings []*setting, keys, environ []string) (values map[string]string, errs []error) {
	values = map[string]string{}
	byName := map[string]string{envName("config"): "config"}
	names := make([]string, 0, len(keys))
	for _, k := range keys {
		names = append(names, envName(k))
	}
	for _, s := range settings {
		byName[envName(s.key)] = s.key
	}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		key, known := byName[name]
		switch {
		case known:
			values[key] = value
		case strings.HasPrefix(name, "PIPELINE_") && !cli.IsServiceVariable(name):
			errs = append(errs, fmt.Errorf("environment: unknown variable %s%s", name, spell.DidYouMean(name, names)))
		}
	}
	// Our own name for it wins over the one that everybody uses.
	for _, v := range environ {
		if value, ok := strings.CutPrefix(v, "DATABASE_URL="); ok {
			if _, set := values["database-url"]; !set && value != "" {
				values["database-url"] = value
			}
		}
	}
	return values, errs
}
