// SPDX-License-Identifier: Apache-2.0

package body

// numberState is how much of a number was seen.
type numberState uint8

const (
	noNumber numberState = iota
	behindMinus
	behindZero // a leading one
	inInteger
	behindPoint
	inFraction
	behindE
	behindSign // of the exponent
	inExponent
)

// maxNumber is how much of a number is kept. A longer one is not a count of tokens.
const maxNumber = 1 << 10

func (s *scanner) beginNumber(c byte) {
	s.state, s.number, s.raw, s.keep = inNumber, inInteger, s.raw[:0], 0
	switch c {
	case '-':
		s.number = behindMinus
	case '0':
		s.number = behindZero
	}
	if s.reads(fieldCounts) {
		s.raw, s.keep = append(s.raw, c), maxNumber
	}
	s.text.number()
}

// digits scans what the piece has of a number.
func (s *scanner) digits() error {
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
		} else if s.isToken(p[n:]) {
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
	s.state = behindValue
	if s.reads(fieldCounts) {
		return s.readCount()
	}
	return nil
}

// isToken reports whether the number ends here and another integer follows in the same
// array, as in a prompt of token ids.
func (s *scanner) isToken(rest []byte) bool {
	return len(rest) > 1 && rest[0] == ',' && rest[1] > '0' && rest[1] <= '9' &&
		s.number.mayEnd() && !s.objects[len(s.objects)-1]
}

// mayEnd reports whether the number is complete.
func (n numberState) mayEnd() bool { return n.takesMore() || n == behindZero }

// takesMore reports whether any digit continues the number without a change of state.
func (n numberState) takesMore() bool { return n == inInteger || n == inFraction || n == inExponent }

// numberSteps has the next state of a number for each sort of byte.
var numberSteps = [...][5]numberState{
	//            0           1 to 9      .            e        + or -
	behindMinus: {behindZero, inInteger, noNumber, noNumber, noNumber},
	behindZero:  {noNumber, noNumber, behindPoint, behindE, noNumber},
	inInteger:   {inInteger, inInteger, behindPoint, behindE, noNumber},
	behindPoint: {inFraction, inFraction, noNumber, noNumber, noNumber},
	inFraction:  {inFraction, inFraction, noNumber, behindE, noNumber},
	behindE:     {inExponent, inExponent, noNumber, noNumber, behindSign},
	behindSign:  {inExponent, inExponent, noNumber, noNumber, noNumber},
	inExponent:  {inExponent, inExponent, noNumber, noNumber, noNumber},
}

// next returns the state after a byte, noNumber when the byte does not belong to the
// number.
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
