package cli

import (
	"fmt"
	"regexp"
	"strings"
)

// serviceVariable is what Kubernetes and Docker links put into the environment for services, with the service's name in
// front: NAME_SERVICE_HOST, NAME_PORT_9090_TCP_ADDR and so on.
var serviceVariable = regexp.MustCompile(
	`^[A-Z][A-Z0-9_]*_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_.*)?)?)$`)

// IsServiceVariable reports whether an environment variable is one that an orchestrator sets for each service. For a
// service whose name begins like ours it looks like a setting and is none.
func IsServiceVariable(name string) bool { return serviceVariable.MatchString(name) }

// FromService completes the error about an environment variable whose value an orchestrator may have set.
func FromService(name, value string, err error) error {
	if err != nil && (strings.HasPrefix(value, "tcp://") || strings.HasPrefix(value, "udp://")) {
		return fmt.Errorf("%w; Kubernetes and Docker links set such a value for a service of that name: rename the service, "+
			"or set enableServiceLinks: false (%s)", err, name)
	}
	return err
}

// DatabaseVariable returns the name of an environment variable that holds the address of a PostgreSQL, "" if none does.
func DatabaseVariable(environ []string) string {
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if strings.HasPrefix(value, "postgres://") || strings.HasPrefix(value, "postgresql://") {
			return name
		}
	}
	return ""
}
