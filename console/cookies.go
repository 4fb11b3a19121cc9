package console

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"sluice.example/sluice/internal/pgtx"
	"sluice.example/sluice/operate/logins"
)

// cookies knows who is logged in by what it has signed; it keeps no sessions. Their key is in the database, so that all
// nodes take them. Until it is known, and where there is no database, a key of this process signs.
type cookies struct {
	db  pgtx.Beginner
	log *slog.Logger

	// asking is held by who asks the database.
	asking sync.Mutex
	// askedAt and failing are guarded by asking.
	askedAt time.Time
	failing bool

	mu sync.Mutex
	// readOnly is true where the database takes no changes.
	readOnly bool
	// own is the key of this process, shared that of the database, nil until it is known.
	own, shared []byte
	// once is the secret of the link that was printed; it is good for one login.
	once string
}

const (
	// keyAge is how long a key that was renewed elsewhere is still taken.
	keyAge = 2 * time.Second
	// keyPatience bounds what a request waits for the key. Where it is not known by then, the last one counts.
	keyPatience = 300 * time.Millisecond
)

func newCookies(db pgtx.Beginner, log *slog.Logger) *cookies {
	return &cookies{db: db, log: log, own: secret(), once: base64.RawURLEncoding.EncodeToString(secret())}
}

func secret() []byte {
	b := make([]byte, 32)
	rand.Read(b)
	return b
}

// link returns the secret of the link of this process, empty once it was used.
func (k *cookies) link() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.once
}

// redeem uses up the secret of this process's link.
func (k *cookies) redeem(secret string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.once == "" || subtle.ConstantTimeCompare([]byte(secret), []byte(k.once)) != 1 {
		return false
	}
	k.once = ""
	return true
}

// refresh asks the database for its key, unless it was asked less than age ago.
func (k *cookies) refresh(ctx context.Context, age time.Duration) {
	if k.db == nil {
		return
	}
	k.asking.Lock()
	defer k.asking.Unlock()
	if time.Since(k.askedAt) < age {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keyPatience)
	defer cancel()
	var key []byte
	var replica, readOnly bool
	bounds := pgtx.Bounds{Idle: 5 * time.Second, Statement: keyPatience}
	err := pgtx.InTx(ctx, k.db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, bounds, func(tx pgx.Tx) (err error) {
		if key, err = logins.Key(ctx, tx); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, readOnlySQL).Scan(&replica, &readOnly); err != nil || !readOnly {
			return err
		}
		// It may be the session alone that began while the database was so. The next look takes a new one.
		return errors.Join(errReadOnlySession, tx.Conn().Close(ctx))
	})
	if errors.Is(err, errReadOnlySession) {
		err = nil
	}
	k.askedAt = time.Now()
	if err != nil && !k.failing {
		k.log.Warn("console: the last key of cookies counts on", "error", err)
	}
	if k.failing = err != nil; !k.failing {
		k.take(key, replica || readOnly)
	}
}

// readOnlySQL is what "show transaction_read_only" says in a transaction that does not ask to be read-only.
const readOnlySQL = `select pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean`

var errReadOnlySession = errors.New("this session is read-only")

// changes is false where the database is known to take none.
func (k *cookies) changes() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.readOnly
}

// take puts a key into use. One that replaces another ends every login, so it ends those of this process's key too.
func (k *cookies) take(key []byte, readOnly bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.readOnly = readOnly
	if k.shared != nil && !bytes.Equal(k.shared, key) {
		k.own, k.once = secret(), ""
	}
	k.shared = key
}

// keys are those whose cookies count; the first one signs.
func (k *cookies) keys() [][]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.shared == nil {
		return [][]byte{k.own}
	}
	return [][]byte{k.shared, k.own}
}

// who returns who a cookie is of.
func (k *cookies) who(ctx context.Context, value string) (Identity, bool) {
	k.refresh(ctx, keyAge)
	if who, ok := k.open(value, time.Now()); ok {
		return who, true
	}
	// It may be of a key that is newer than ours. Wrong cookies ask the database once a second in all.
	k.refresh(ctx, time.Second)
	return k.open(value, time.Now())
}

// seal returns the cookie's value: name, role and end, signed.
func (k *cookies) seal(who Identity, until time.Time) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(who.Name)) + "." + who.Role.String() + "." +
		strconv.FormatInt(until.Unix(), 10)
	return text + "." + sign(k.keys()[0], text)
}

func sign(key []byte, text string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// open reads a cookie that one of the keys has signed, and whose time is not over.
func (k *cookies) open(value string, now time.Time) (who Identity, ok bool) {
	cut := strings.LastIndexByte(value, '.')
	if cut < 0 {
		return who, false
	}
	text, signature := value[:cut], []byte(value[cut+1:])
	for _, key := range k.keys() {
		ok = ok || hmac.Equal(signature, []byte(sign(key, text)))
	}
	f := strings.Split(text, ".")
	if !ok || len(f) != 3 {
		return who, false
	}
	name, err := base64.RawURLEncoding.DecodeString(f[0])
	until, err2 := strconv.ParseInt(f[2], 10, 64)
	if err != nil || err2 != nil || now.Unix() >= until {
		return who, false
	}
	who.Name = string(name)
	who.Role, ok = roleOf(f[1])
	return who, ok
}
