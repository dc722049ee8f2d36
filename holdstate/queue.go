// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"container/list"
	"iter"
)

// queue holds the waiters of one target in the order in which they get slots:
// strict by arrival inside a key, round-robin across keys. A key's turn is spent
// only by a granted slot.
type queue struct {
	byKey map[string]*keyQueue
	turns list.List // of *keyLine, the next to be granted in front
	n     int
	gated int // those in state Released
}

// keyQueue is one key's waiters by arrival number.
type keyQueue struct {
	key     string
	waiters list.List // of *Waiter
	turn    *list.Element
}

// add puts w at the place of its arrival number: a waiter that comes back stands
// before those that arrived after it.
func (l *queue) add(w *Waiter) {
	if l.byKey == nil {
		l.byKey = map[string]*keyQueue{}
	}
	k := l.byKey[w.turnKey]
	if k == nil {
		k = &keyQueue{key: w.turnKey}
		l.byKey[w.turnKey] = k
		k.turn = l.turns.PushBack(k)
	}
	at := k.waiters.Back()
	for at != nil && at.Value.(*Waiter).seq > w.seq {
		at = at.Prev()
	}
	if at == nil {
		w.place = k.waiters.PushFront(w)
	} else {
		w.place = k.waiters.InsertAfter(w, at)
	}
	w.queue = l
	l.n++
}

// remove takes w out. A key without waiters loses its turn.
func (l *queue) remove(w *Waiter) {
	k := l.byKey[w.turnKey]
	k.waiters.Remove(w.place)
	w.queue, w.place = nil, nil
	l.n--
	if k.waiters.Len() == 0 {
		l.turns.Remove(k.turn)
		delete(l.byKey, k.key)
	}
}

// inTurn yields the waiters in the order in which slots would be theirs: the first
// of each key, then the second of each. The caller may remove the one it has.
func (l *queue) inTurn() iter.Seq[*Waiter] {
	return func(yield func(*Waiter) bool) {
		var round []*list.Element
		for turn := l.turns.Front(); turn != nil; {
			first := turn.Value.(*keyQueue).waiters.Front()
			turn = turn.Next()
			second := first.Next()
			if !yield(first.Value.(*Waiter)) {
				return
			}
			if second != nil {
				round = append(round, second)
			}
		}
		for len(round) > 0 {
			next := round[:0]
			for _, e := range round {
				after := e.Next()
				if !yield(e.Value.(*Waiter)) {
					return
				}
				if after != nil {
					next = append(next, after)
				}
			}
			round = next
		}
	}
}

// spend moves the key of w behind the others. Call it before w is removed.
func (l *queue) spend(w *Waiter) { l.turns.MoveToBack(l.byKey[w.turnKey].turn) }

// each calls f for every waiter; f may remove the one it is called with.
func (l *queue) each(f func(*Waiter)) {
	for turn := l.turns.Front(); turn != nil; {
		k := turn.Value.(*keyQueue)
		turn = turn.Next()
		for e := k.waiters.Front(); e != nil; {
			w := e.Value.(*Waiter)
			e = e.Next()
			f(w)
		}
	}
}
