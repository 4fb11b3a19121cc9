package share

import "testing"

func TestRoom(t *testing.T) {
	b := New(1000, 2)
	none := make([]int, 2)
	check := func(user int, promised []int, wantRoom, wantFull int) {
		t.Helper()
		if room, full := b.Room(user, promised); room != wantRoom || full != wantFull {
			t.Fatalf("Room(%d, %v) with %v held = %d of %d; want %d of %d", user, promised, b.held, room, full, wantRoom,
				wantFull)
		}
	}
	check(0, none, 750, 750) // alone: its own part and all that is common
	b.Add(0, 750)
	check(0, none, 0, 750)
	check(1, none, 250, 500) // the part that is lent to nobody
	b.Add(1, 250)
	check(0, none, 0, 500) // over its part, since another has come
	b.Add(0, -200)
	check(1, none, 200, 500) // what the first gave back
	check(0, none, 0, 500)
	check(1, []int{0, 200}, 0, 500)
	b.Add(1, -250)
	check(0, none, 200, 750)
	check(0, []int{0, 300}, 0, 500)
	b.Add(0, 5000)
	check(1, none, 250, 500) // however much another holds
}

// Many users and few bytes: each has room for one message all the same.
func TestRoomForOne(t *testing.T) {
	b := New(3, 100)
	promised := make([]int, 100)
	for user := range 100 {
		if room, _ := b.Room(user, promised); room < 1 {
			t.Fatalf("user %d has no room, and holds nothing", user)
		}
		b.Add(user, 10)
	}
	if room, _ := b.Room(1, promised); room != 0 {
		t.Fatalf("a user that holds its part has room for %d", room)
	}
}
