package importer

import (
	"fmt"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"sluice.example/sluice/internal/cli"
)

// progress shows how far an import is: a bar for a person, a line now and then for a log.
type progress struct {
	env   cli.Env
	size  int64
	every time.Duration
	bar   *progressbar.ProgressBar // nil without a terminal

	mu       sync.Mutex
	shownAt  time.Time
	noticeAt time.Time
}

func newProgress(env cli.Env, size, offset int64, every time.Duration) *progress {
	p := &progress{env: env, size: size, every: every, shownAt: time.Now()}
	if env.Terminal {
		total := size
		if total == 0 {
			total = -1 // unknown: a spinner
		}
		p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(env.Stderr), progressbar.OptionShowBytes(true),
			progressbar.OptionSetDescription("import"), progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish())
		_ = p.bar.Set64(offset) // drawing is not worth failing for
	}
	return p
}

func (p *progress) show(c checkpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Set64(c.Offset)
		return
	}
	if time.Since(p.shownAt) < p.every {
		return
	}
	p.shownAt = time.Now()
	share := ""
	if p.size > 0 {
		share = fmt.Sprintf(" (%d %%)", c.Offset*100/p.size)
	}
	fmt.Fprintf(p.env.Stderr, "import: line %d%s, %d stored, %d duplicate, %d rejected\n", c.Line, share, c.Stored,
		c.Duplicate, c.Rejected)
}

// notice prints why nothing moves, at most once a second.
func (p *progress) notice(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.noticeAt) < time.Second {
		return
	}
	p.noticeAt = time.Now()
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintf(p.env.Stderr, "import: %s\n", text)
}

func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}
