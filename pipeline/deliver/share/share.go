// Package share shares out a number of bytes among users, so that one that holds its bytes for long does not hold up
// the others.
//
// Half of the bytes is set aside, the same part for each user, and lent to nobody. The other half is for those who hold
// bytes or ask for them, in equal parts: who is alone may have all of it. It is never taken away. A user that holds
// more than its part, since others have come, gets nothing until it holds less.
package share

import "sync"

// Bytes are shared out. Safe for concurrent use.
type Bytes struct {
	own, common int // what is set aside for each user, and what is shared by all

	mu   sync.Mutex
	held []int
}

// New shares bytes out to users, which are numbers from 0 on.
func New(bytes, users int) *Bytes {
	own := bytes / 2 / max(users, 1)
	return &Bytes{own: own, common: bytes - own*users, held: make([]int, users)}
}

// Add notes that a user holds n bytes more; fewer where n is negative. It may be more than Room.
func (b *Bytes) Add(user, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[user] += n
}

// Held is how many bytes a user holds.
func (b *Bytes) Held(user int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held[user]
}

// Room is how many bytes a user may take now, where the others have been promised what is in promised, by user. full is
// all that it may hold. Who holds nothing always has room.
func (b *Bytes) Room(user int, promised []int) (room, full int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	active, left := 0, b.common
	for i, held := range b.held {
		if held += promised[i]; held > 0 || i == user {
			active++
		}
		if i != user {
			left -= max(0, held-b.own)
		}
	}
	held := b.held[user] + promised[user]
	full = b.own + b.common/active
	room = min(full, b.own+max(left, 0)) - held
	if held == 0 {
		room = max(room, 1)
	}
	return max(room, 0), full
}
