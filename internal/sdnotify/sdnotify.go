// Package sdnotify tells the service manager that started this process how it is, as sd_notify(3) describes: systemd
// waits for READY=1 of a service of Type=notify. Without such a manager it does nothing. What could not be told
// changes nothing in the process; a manager that hears nothing acts by its own timeouts.
package sdnotify

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

const variable = "NOTIFY_SOCKET"

// patience bounds a message to a manager that reads nothing.
const patience = time.Second

// Manager is where to tell. Its zero value is none.
type Manager struct{ socket string }

// Take returns the manager that the environment names, and removes it from the environment: programs that this process
// starts would speak for it otherwise. PostgreSQL says READY=1 too.
func Take() Manager {
	m := Manager{os.Getenv(variable)}
	_ = os.Unsetenv(variable) // fails for names that are none
	return m
}

// Tell sends lines such as READY=1 as one message.
func (m Manager) Tell(lines ...string) error {
	if m.socket == "" {
		return nil
	}
	// A name that begins with @ is one without a file; net knows that form.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	if err == nil {
		defer conn.Close()
		if err = conn.SetDeadline(time.Now().Add(patience)); err == nil {
			_, err = conn.Write([]byte(strings.Join(lines, "\n")))
		}
	}
	if err != nil {
		return fmt.Errorf("tell the service manager at %s: %w", variable, err)
	}
	return nil
}

// Within asks the manager to wait for the next step for at least d from now on, whatever its own timeout is.
func Within(d time.Duration) string {
	return "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10)
}
