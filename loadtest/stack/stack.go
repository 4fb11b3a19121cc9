// Package stack starts what a load run needs, a pipeline and a receiver, each as a process of its own on free
// loopback ports, joined by the rules and destinations of loadtest/. Both sign and verify with a secret made for the
// run.
package stack

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sluice.example/sluice/internal/child"
)

// Options are how to start.
type Options struct {
	// Pipeline and Lab are the paths of bin/pipeline and bin/lab, Folder that of loadtest/.
	Pipeline, Lab, Folder string
	// PipelineArgs and ReceiverArgs come after ours.
	PipelineArgs, ReceiverArgs []string
	// Env is added to the environment, for example DATABASE_URL.
	Env []string
	// PipelineLog and ReceiverLog are files that get what each writes.
	PipelineLog, ReceiverLog string
}

// Stack is a running pipeline and a receiver.
type Stack struct {
	// URL takes events, Admin answers operators, Receiver takes webhooks.
	URL, Admin, Receiver string
	pipeline, receiver   *child.Process
}

// startTimeout bounds the start, with a private PostgreSQL that has to be made first.
const startTimeout = 2 * time.Minute

// Start starts both and returns when the pipeline is ready. Call Stop in any case but an error.
func Start(ctx context.Context, o Options) (_ *Stack, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	key := make([]byte, 32)
	rand.Read(key) // never fails, see crypto/rand
	secret := "whsec_" + base64.StdEncoding.EncodeToString(key)
	env := slices.Concat(os.Environ(), o.Env)

	s := &Stack{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	s.receiver, err = child.Start(ctx, child.Command{
		Program: o.Lab, Log: o.ReceiverLog,
		Env:  slices.Concat(env, []string{"RECEIVER_WEBHOOK_SECRET=" + secret, "RECEIVER_SECRET=" + secret}),
		Args: append([]string{"receiver", "--listen", "127.0.0.1:0", "--keep-messages", "2000"}, o.ReceiverArgs...),
	})
	if err != nil {
		return nil, err
	}
	s.Receiver = s.receiver.URL
	s.pipeline, err = child.Start(ctx, child.Command{
		Program: o.Pipeline, Log: o.PipelineLog,
		Env: slices.Concat(env, []string{"LOADTEST_RECEIVER=" + s.Receiver, "LOADTEST_SECRET=" + secret}),
		Args: append([]string{"run", "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0",
			"--console.listen", "127.0.0.1:0", "--log.format", "json",
			"--rules", filepath.Join(o.Folder, "rules.yaml"),
			"--destinations", filepath.Join(o.Folder, "destinations.yaml")}, o.PipelineArgs...),
	})
	if err != nil {
		return nil, err
	}
	s.URL, s.Admin = s.pipeline.URL, s.pipeline.Admin
	return s, s.pipeline.AwaitReady(ctx)
}

// Stop lets the pipeline drain, then ends the receiver.
func (s *Stack) Stop() error {
	var errs []error
	for _, p := range []*child.Process{s.pipeline, s.receiver} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	return errors.Join(errs...)
}
