// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/holdgate/holdgate/sitemap"
)

const sitemapPath = "/v1/sitemap"

// Push is how a map is pushed.
type Push struct {
	// Force overrides the rule of generations.
	Force bool
	// IfMatch is the tag of the map that must be in force; empty: any.
	IfMatch string
}

// PushMap puts a map in force.
func (c *Client) PushMap(ctx context.Context, data []byte, how Push) (sitemap.Summary, error) {
	call := Call{Method: http.MethodPut, Path: sitemapPath, Body: data, Query: url.Values{}, Header: http.Header{}}
	if how.Force {
		call.Query.Set("force", "1")
	}
	if how.IfMatch != "" {
		call.Header.Set("If-Match", how.IfMatch)
	}
	var sum sitemap.Summary
	err := c.JSON(ctx, call, &sum)
	return sum, err
}

// Map is the map in force.
type Map struct {
	JSON   []byte
	ETag   string
	Source string
	Age    time.Duration
}

// Map gets the map in force.
func (c *Client) Map(ctx context.Context) (Map, error) {
	answer, err := c.Do(ctx, Call{Method: http.MethodGet, Path: sitemapPath})
	if err != nil {
		return Map{}, err
	}
	m := Map{JSON: answer.Body, ETag: answer.Header.Get("ETag"), Source: answer.Header.Get("X-Sitemap-Source")}
	if seconds, err := strconv.ParseUint(answer.Header.Get("Age"), 10, 31); err == nil {
		m.Age = time.Duration(seconds) * time.Second
	}
	return m, nil
}
