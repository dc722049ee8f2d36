// SPDX-License-Identifier: Apache-2.0

package body

// numberState says which part of a number was scanned last.
type numberState uint8

const (
	noNumber numberState = iota
	afterMinus
	afterZero // a leading one
	inInteger
	afterPoint
	inFraction
	afterE
	afterSign // of the exponent
	inExponent
)

// maxNumber is how many bytes of a number are kept. A longer one is no number of tokens.
const maxNumber = 1 << 10

func (s *scanner) beginNumber(c byte) {
	s.state, s.number, s.raw, s.keep = inNumber, inInteger, s.raw[:0], 0
	switch c {
	case '-':
		s.number = afterMinus
	case '0':
		s.number = afterZero
	}
	if s.reads(fieldCounts) {
		s.raw, s.keep = append(s.raw, c), maxNumber
	}
	s.text.number()
}

// scanNumber scans the part of a number that is in the piece. It scans a list of token ids
// as one number, which is faster.
func (s *scanner) scanNumber() error {
	p, n := s.p, s.i
	for n < len(p) {
		for s.number.takesMore() && n < len(p) && isDigit(p[n]) {
			n++
		}
		if n == len(p) {
			break
		}
		if next := s.number.next(p[n]); next != noNumber {
			s.number = next
			n++
		} else if s.anotherFollows(p[n:]) {
			s.number = inInteger
			s.text.number()
			n += 2
		} else {
			break
		}
	}
	s.keepBytes(p[s.i:n])
	s.i = n
	switch {
	case n == len(p):
		return nil
	case !s.number.mayEnd():
		return s.invalid()
	}
	s.state = afterValue
	if s.reads(fieldCounts) {
		return s.readCount()
	}
	return nil
}

// anotherFollows reports whether the number ends before rest, and another integer follows
// in the same array, as in a prompt of token ids.
func (s *scanner) anotherFollows(rest []byte) bool {
	return len(rest) > 1 && rest[0] == ',' && rest[1] > '0' && rest[1] <= '9' &&
		s.number.mayEnd() && !s.objects[len(s.objects)-1]
}

// mayEnd reports whether the number may end in this state.
func (n numberState) mayEnd() bool { return n.takesMore() || n == afterZero }

// takesMore reports whether any digit may follow without a change of state.
func (n numberState) takesMore() bool { return n == inInteger || n == inFraction || n == inExponent }

// numberSteps has the next state of a number for each class of bytes.
var numberSteps = [...][5]numberState{
	//            0           1 to 9      .            e        + or -
	afterMinus: {afterZero, inInteger, noNumber, noNumber, noNumber},
	afterZero:  {noNumber, noNumber, afterPoint, afterE, noNumber},
	inInteger:  {inInteger, inInteger, afterPoint, afterE, noNumber},
	afterPoint: {inFraction, inFraction, noNumber, noNumber, noNumber},
	inFraction: {inFraction, inFraction, noNumber, afterE, noNumber},
	afterE:     {inExponent, inExponent, noNumber, noNumber, afterSign},
	afterSign:  {inExponent, inExponent, noNumber, noNumber, noNumber},
	inExponent: {inExponent, inExponent, noNumber, noNumber, noNumber},
}

// next returns the state after c, noNumber when c does not belong to the number.
func (n numberState) next(c byte) numberState {
	switch {
	case c == '0':
		return numberSteps[n][0]
	case isDigit(c):
		return numberSteps[n][1]
	case c == '.':
		return numberSteps[n][2]
	case c == 'e' || c == 'E':
		return numberSteps[n][3]
	case c == '+' || c == '-':
		return numberSteps[n][4]
	}
	return noNumber
}
