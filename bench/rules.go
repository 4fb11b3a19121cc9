package bench

import (
	"fmt"
	"strings"
)

const (
	totalRules    = 20
	matchingRules = 3
)

// rulesFile is the rule set of the runs: 20 rules, of which 3 share out the matching events, so that each of those
// becomes one message; 9 look at events that do come and match none; 8 listen to names that never come.
func rulesFile() string {
	var b strings.Builder
	b.WriteString("version: 1\nruleset: bench\nrules:\n")
	for i := range totalRules {
		on, match := matchingEvent, fmt.Sprintf("event.properties.lane == %d", i)
		switch {
		case i >= 12:
			on, match = fmt.Sprintf("never_%d", i), "event.properties.price_cents > 0"
		case i >= matchingRules:
			on, match = "page_viewed", fmt.Sprintf(`event.properties.price_cents > %d && event.properties.currency == "EUR"`,
				1_000_000+i)
		}
		fmt.Fprintf(&b, `  - id: rule-%d
    owner: bench
    response: rules.yaml
    on: [%s]
    match: '%s'
    subject: event.user_id
    dedupe_key: event.event_id
    payload:
      event_id: event.event_id
      user_id: event.user_id
      price_cents: event.properties.price_cents
    send_to: receiver
`, i, on, match)
	}
	return b.String()
}

// secret signs what the runs send to their own receiver.
const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func destinationsFile(url string, concurrency int) string {
	return fmt.Sprintf("destinations:\n  - {name: receiver, url: '%s', secret_file: secret, allow_private: true, "+
		"concurrency: %d}\n", url, concurrency)
}

// files writes rules and destinations into dir and returns the arguments that name them.
func files(dir, receiver string, concurrency int) ([]string, error) {
	secretFile, err := write(dir, "secret", secret)
	if err != nil {
		return nil, err
	}
	rules, err := write(dir, "rules.yaml", rulesFile())
	if err != nil {
		return nil, err
	}
	destinations, err := write(dir, "destinations.yaml", strings.Replace(destinationsFile(receiver, concurrency),
		"secret_file: secret", "secret_file: '"+secretFile+"'", 1))
	if err != nil {
		return nil, err
	}
	return []string{"--rules", rules, "--destinations", destinations}, nil
}
