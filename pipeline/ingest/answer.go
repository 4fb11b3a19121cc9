package ingest

import (
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"sluice.example/sluice/internal/jsontext"
	"sluice.example/sluice/pipeline"
)

// answer writes what became of each event: verdicts of those that passed the door, rejected of those that did not.
// Indexes in the answer count from 0 over the whole request.
func answer(ctx exchange, rejected []rejection, verdicts []pipeline.Verdict, all bool) {
	o := count(rejected, verdicts)
	b := make([]byte, 0, 128+32*(o.duplicate+o.rejected))
	if o.rejected > 0 && o.stored+o.duplicate == 0 {
		status := ctx.shape.status(422)
		ctx.SetStatusCode(status)
		ctx.Response.Header.SetContentType("application/problem+json")
		b = append(b, '{')
		b = appendProblem(b, status, "all-rejected",
			"none of the events can be stored as it is; sending them again does not help")
		b = append(b, ',')
	} else {
		ctx.SetStatusCode(200)
		ctx.Response.Header.SetContentType("application/json")
		b = append(b, ctx.shape.head...)
	}
	b, _ = appendVerdicts(b, rejected, verdicts, 0, all)
	ctx.Response.SetBodyRaw(append(b, "}\n"...))
}

// appendVerdicts appends the members stored, duplicate, rejected and events. Indexes count from base.
func appendVerdicts(b []byte, rejected []rejection, verdicts []pipeline.Verdict, base int, all bool) ([]byte, tally) {
	o := count(rejected, verdicts)
	b = append(b, `"stored":`...)
	b = strconv.AppendInt(b, int64(o.stored), 10)
	b = append(b, `,"duplicate":`...)
	b = strconv.AppendInt(b, int64(o.duplicate), 10)
	b = append(b, `,"rejected":`...)
	b = strconv.AppendInt(b, int64(o.rejected), 10)
	b = append(b, `,"events":[`...)
	first := true
	list := func(index int, result, field, reason string) {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = appendVerdict(b, base+index, result, field, reason)
	}
	index := 0
	for i := range verdicts {
		for len(rejected) > 0 && rejected[0].index == index {
			list(index, "rejected", rejected[0].field, rejected[0].reason)
			rejected = rejected[1:]
			index++
		}
		v := &verdicts[i]
		switch v.Outcome {
		case pipeline.Stored:
			if all {
				list(index, "stored", "", "")
			}
		case pipeline.Duplicate:
			list(index, "duplicate", "", "")
		default:
			list(index, "rejected", v.Field, v.Reason)
		}
		index++
	}
	for i := range rejected {
		list(rejected[i].index, "rejected", rejected[i].field, rejected[i].reason)
	}
	return append(b, ']'), o
}

// count counts the verdicts of the door and of the database together.
func count(rejected []rejection, verdicts []pipeline.Verdict) tally {
	o := tally{events: len(rejected) + len(verdicts), rejected: len(rejected)}
	for i := range verdicts {
		switch verdicts[i].Outcome {
		case pipeline.Stored:
			o.stored++
		case pipeline.Duplicate:
			o.duplicate++
		default:
			o.rejected++
		}
	}
	return o
}

// answerAccepted is the answer to Prefer: respond-async.
func answerAccepted(ctx exchange, accepted int, rejected []rejection) {
	ctx.SetStatusCode(202)
	ctx.Response.Header.SetContentType("application/json")
	ctx.Response.Header.Set("Preference-Applied", "respond-async")
	b := make([]byte, 0, 128)
	b = append(b, `{"accepted":`...)
	b = strconv.AppendInt(b, int64(accepted), 10)
	b = append(b, `,"rejected":`...)
	b = strconv.AppendInt(b, int64(len(rejected)), 10)
	b = append(b, `,"events":[`...)
	for i := range rejected {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendVerdict(b, rejected[i].index, "rejected", rejected[i].field, rejected[i].reason)
	}
	b = append(b, "]}\n"...)
	ctx.Response.SetBodyRaw(b)
}

func appendVerdict(b []byte, index int, result, field, reason string) []byte {
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(index), 10)
	b = append(b, `,"result":"`...)
	b = append(b, result...)
	b = append(b, '"')
	if field != "" {
		b = append(b, `,"field":`...)
		b = jsontext.AppendString(b, field)
	}
	if reason != "" {
		b = append(b, `,"reason":`...)
		b = jsontext.AppendString(b, reason)
	}
	return append(b, '}')
}

// problem answers with an RFC 9457 document. A negative offset is left out.
func problem(ctx exchange, status int, kind, detail string, offset int) {
	status = ctx.shape.status(status)
	ctx.SetStatusCode(status)
	ctx.Response.Header.SetContentType("application/problem+json")
	b := make([]byte, 0, 256)
	b = append(b, '{')
	b = appendProblem(b, status, kind, detail)
	if offset >= 0 {
		b = append(b, `,"offset":`...)
		b = strconv.AppendInt(b, int64(offset), 10)
	}
	b = append(b, "}\n"...)
	ctx.Response.SetBodyRaw(b)
}

func appendProblem(b []byte, status int, kind, detail string) []byte {
	b = append(b, `"type":"urn:sluice:problem:`...)
	b = append(b, kind...)
	b = append(b, `","title":`...)
	b = jsontext.AppendString(b, fasthttp.StatusMessage(status))
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, `,"detail":`...)
	return jsontext.AppendString(b, detail)
}

// retryAfter asks the client to wait at least d, in whole seconds and at least one. Up to a quarter more, by chance,
// keeps those who were rejected together from coming back together.
func retryAfter(ctx exchange, d time.Duration) {
	seconds := max(1, int((d+time.Second-1)/time.Second))
	seconds += rand.IntN(2 + seconds/4)
	ctx.Response.Header.Set("Retry-After", strconv.Itoa(seconds))
}
