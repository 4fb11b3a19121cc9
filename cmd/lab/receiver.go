package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"sluice.example/sluice/inbox"
	"sluice.example/sluice/internal/cli"
	"sluice.example/sluice/internal/httpserve"
	"sluice.example/sluice/internal/receiver"
)

const receiverAbout = `A webhook sink for trials and tests. Every POST is a message: its signatures are verified, its
idempotency key is remembered, and it fails as told. GET /stats counts, GET /messages shows the last bodies, GET
/healthz answers ok. Secrets come from the environment: RECEIVER_WEBHOOK_SECRET (whsec_..., Standard Webhooks) and
RECEIVER_SECRET (X-Signature). A form without a secret is not checked.`

func receiverCommand(ctx context.Context, args []string, env cli.Env) error {
	o := receiver.DefaultOptions()
	fs := cli.NewFlags(env, "receiver", receiverAbout,
		"RECEIVER_SECRET=s3cret lab receiver --listen 127.0.0.1:9000 --fail-rate 0.1 --delay 20ms")
	listen := fs.String("listen", "127.0.0.1:9000", "`address` to listen on")
	fs.Float64Var(&o.FailRate, "fail-rate", 0, "`share` of requests to answer with --fail-status, 0 to 1")
	fs.IntVar(&o.FailStatus, "fail-status", 503, "HTTP `status` of a failure")
	fs.Float64Var(&o.HangRate, "hang", 0, "`share` of requests to leave without any answer, 0 to 1")
	fs.Float64Var(&o.LoseAnswers, "lose-answers", 0, "`share` of requests to take and yet answer with --fail-status, 0 "+
		"to 1")
	cli.Duration(fs, &o.Delay, "delay", 0, "how `long` to wait before each answer")
	fs.IntVar(&o.KeepKeys, "keep-keys", 1_000_000, "idempotency `keys` to remember; about 100 bytes each")
	fs.IntVar(&o.KeepMessages, "keep-messages", 100, "`messages` to show at /messages; at most 16 KiB each")
	fs.Uint64Var(&o.Seed, "seed", 0, "`seed` of the random choices; 0 takes a new one each time")
	ready := readyFlag(fs)
	_, err := cli.Parse(fs, args, 0)
	if err != nil {
		return err
	}
	if o.Verifiers, err = receiverVerifiers(env); err != nil {
		return cli.Usage(err)
	}
	r, err := receiver.New(o)
	if err != nil {
		return cli.Usage(err)
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "receiver: listening on http://%s, verifying %d signature forms\n", l.Addr(), len(o.Verifiers))
	told := cli.Ready{URL: "http://" + l.Addr().String(), Pid: os.Getpid()}
	if err := told.Write(*ready); err != nil {
		return errors.Join(err, l.Close())
	}
	return httpserve.Serve(ctx, l, r.Handler(), 5*time.Second)
}

func receiverVerifiers(env cli.Env) (all []inbox.Verifier, err error) {
	var errs []error
	if s := env.Variable("RECEIVER_WEBHOOK_SECRET"); s != "" {
		v, err := inbox.NewStandardWebhooks(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("RECEIVER_WEBHOOK_SECRET: %w", err))
		}
		all = append(all, v)
	}
	if s := env.Variable("RECEIVER_SECRET"); s != "" {
		v, err := inbox.NewXSignature(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("RECEIVER_SECRET: %w", err))
		}
		all = append(all, v)
	}
	return all, errors.Join(errs...)
}
