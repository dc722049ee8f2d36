// SPDX-License-Identifier: Apache-2.0

package holdstate

import (
	"container/list"
	"iter"
)

// queue has waiters of one target in the order in which they get slots: by arrival inside a
// key, round-robin across keys. A key's turn ends only when it gets a slot.
type queue struct {
	byKey map[string]*keyQueue
	turns list.List // of *keyQueue; the front gets the next slot
	n     int
	gated int // waiters in state Released
}

// keyQueue has the waiters of one key, by Seq.
type keyQueue struct {
	key     string
	waiters list.List // of *Waiter
	turn    *list.Element
}

// add inserts w by its seq: a waiter that returns comes before those that arrived after it.
func (q *queue) add(w *Waiter) {
	if q.byKey == nil {
		q.byKey = map[string]*keyQueue{}
	}
	k := q.byKey[w.turnKey]
	if k == nil {
		k = &keyQueue{key: w.turnKey}
		q.byKey[w.turnKey] = k
		k.turn = q.turns.PushBack(k)
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
	w.queue = q
	q.n++
}

// remove removes w, and its key if that has no other waiter.
func (q *queue) remove(w *Waiter) {
	k := q.byKey[w.turnKey]
	k.waiters.Remove(w.place)
	w.queue, w.place = nil, nil
	q.n--
	if k.waiters.Len() == 0 {
		q.turns.Remove(k.turn)
		delete(q.byKey, k.key)
	}
}

// inTurn yields the waiters in the order in which they would get slots: the first of each
// key, then the second of each, and so on. The loop may remove the current waiter.
func (q *queue) inTurn() iter.Seq[*Waiter] {
	return func(yield func(*Waiter) bool) {
		var round []*list.Element
		for turn := q.turns.Front(); turn != nil; {
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

// endTurn moves the key of w after the others. w must still be in the queue.
func (q *queue) endTurn(w *Waiter) { q.turns.MoveToBack(q.byKey[w.turnKey].turn) }

// each calls f for every waiter; f may remove the one it is called with.
func (q *queue) each(f func(*Waiter)) {
	for turn := q.turns.Front(); turn != nil; {
		k := turn.Value.(*keyQueue)
		turn = turn.Next()
		for e := k.waiters.Front(); e != nil; {
			w := e.Value.(*Waiter)
			e = e.Next()
			f(w)
		}
	}
}
