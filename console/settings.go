package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/operate/audit"
	"sluice.example/sluice/operate/destinations"
	"sluice.example/sluice/operate/tune"
)

// settingList are the settings that operators changed, and those of this process.
type settingList struct {
	Changed tune.Settings `json:"changed"`
	// Settings are those of this process.
	Settings []Setting `json:"settings"`

	Keys []tuneKey `json:"-"`
}

type tuneKey struct{ Key, Values string }

// Setting is one of the configuration of this process.
type Setting struct {
	Key   string `json:"key"`
	Value string `json:"value"` // secrets are masked
	// Source is where the value comes from: file, environment, flag or default.
	Source string `json:"source"`
	Doc    string `json:"doc"`
	// Live is true where it can be changed while the process runs.
	Live bool `json:"live"`
}

func (c *Console) settings(ctx context.Context, _ *request) (any, error) {
	list := settingList{Changed: tune.Settings{}}
	for _, k := range tune.Keys {
		list.Keys = append(list.Keys, tuneKey(k))
	}
	for _, s := range c.src.Settings {
		for _, k := range tune.Keys {
			s.Live = s.Live || s.Key == k.Key
		}
		list.Settings = append(list.Settings, s)
	}
	err := c.read(ctx, func(tx pgx.Tx) (err error) {
		list.Changed, err = tune.Show(ctx, tx)
		return err
	})
	return list, err
}

// longestTrial bounds for how long a change is tried.
const longestTrial = 30 * 24 * time.Hour

func (c *Console) tune(ctx context.Context, r *request) (any, error) {
	by, err := r.by()
	within, err2 := r.length("for")
	if err := firstOf(err, err2); err != nil {
		return nil, err
	}
	key, value, scope := r.text("key"), r.text("value"), r.text("node")
	if err := tune.Check(key, value); err != nil {
		return nil, problem{http.StatusUnprocessableEntity, "bad_setting", err.Error(), ""}
	}
	if within > longestTrial {
		return nil, badForm("for", "at most %s; leave it empty to keep it", length(longestTrial))
	}
	revision, err := changed(ctx, c, func(ctx context.Context) (int64, error) {
		return tune.Set(ctx, c.src.Changes, scope, key, value, within, by)
	})
	return moved{"settings", map[string]int64{"revision": revision}}, err
}

func (c *Console) untune(ctx context.Context, r *request) (any, error) {
	by := audit.Actor{Name: r.who.Name, Via: audit.Console, Why: r.text("why")}
	_, err := changed(ctx, c, func(ctx context.Context) (any, error) {
		return nil, tune.Unset(ctx, c.src.Changes, r.text("node"), r.text("key"), by)
	})
	return moved{"settings", map[string]string{"key": r.text("key")}}, err
}

// changed calls f with the time that a change may take, and makes an answer of what it refuses.
func changed[T any](ctx context.Context, c *Console, f func(context.Context) (T, error)) (done T, err error) {
	if c.src.Changes == nil {
		return done, errNoDatabase
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	done, err = f(ctx)
	switch {
	case errors.Is(err, tune.ErrNotSet):
		err = problem{http.StatusConflict, "not_changed", err.Error(), "look at the settings again"}
	case errors.Is(err, tune.ErrNoDestination):
		err = problem{http.StatusNotFound, "no_destination", err.Error(), ""}
	}
	return done, err
}

// steerDestination pauses, resumes, probes or tests a destination.
func (c *Console) steerDestination(ctx context.Context, r *request) (any, error) {
	name, act := r.PathValue("name"), r.PathValue("action")
	do := map[string]func(context.Context, audit.Actor) (int64, error){
		"pause": func(ctx context.Context, by audit.Actor) (int64, error) {
			return 0, destinations.Pause(ctx, c.src.Changes, name, by)
		},
		"resume": func(ctx context.Context, by audit.Actor) (int64, error) {
			return 0, destinations.Resume(ctx, c.src.Changes, name, by)
		},
		"probe": func(ctx context.Context, by audit.Actor) (int64, error) {
			return 0, destinations.Probe(ctx, c.src.Changes, name, by)
		},
		"test": func(ctx context.Context, by audit.Actor) (int64, error) {
			return destinations.Test(ctx, c.src.Changes, name, by)
		},
	}[act]
	if do == nil {
		return nil, problem{http.StatusNotFound, "no_action", "there is no action " + act,
			"pause, resume, probe and test are"}
	}
	by, err := r.by()
	if err != nil {
		return nil, err
	}
	message, err := changed(ctx, c, func(ctx context.Context) (int64, error) { return do(ctx, by) })
	if err != nil {
		return nil, err
	}
	if message > 0 {
		return moved{"messages/" + strconv.FormatInt(message, 10), map[string]int64{"message_id": message}}, nil
	}
	return moved{"destinations/" + url.PathEscape(name), map[string]string{"destination": name, "done": act}}, nil
}
