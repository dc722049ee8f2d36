// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json/v2"
	"fmt"
	"net/http"

	"github.com/holdgate/holdgate/sitemap"
)

// Error is a refusal of the router.
type Error struct {
	Status  int
	Code    string
	Message string
	// Problems is everything that is wrong with a map or with hints.
	Problems sitemap.Problems
}

// Error gives the router's message, without the list of problems.
func (e *Error) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("the answer is status %d (%s) and not one of an admin API", e.Status, http.StatusText(e.Status))
	}
	return fmt.Sprintf("%s (%d %s)", e.Message, e.Status, e.Code)
}

// refusal reads the body of an error. A proxy's page has no code.
func refusal(status int, body []byte) *Error {
	var envelope struct {
		Error struct {
			Code     string           `json:"code"`
			Message  string           `json:"message"`
			Problems sitemap.Problems `json:"problems"`
		} `json:"error"`
	}
	e := &Error{Status: status}
	if err := json.Unmarshal(body, &envelope); err != nil {
		return e
	}
	e.Code, e.Message, e.Problems = envelope.Error.Code, envelope.Error.Message, envelope.Error.Problems
	return e
}
