// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"slices"
	"sync"

	"github.com/holdgate/holdgate/internal/access"
)

const (
	// maxTenantLabels is how many tenants that are not listed have their own label.
	maxTenantLabels = 1000
	// otherTenant is the label of all further tenants.
	otherTenant = "other"
)

// tenantLabels is the set of tenants that are not listed and have their own label: the first
// ones that sent a request.
type tenantLabels struct {
	mu   sync.Mutex
	seen map[string]struct{}
}

// labelOf returns the label of a tenant that is not listed.
func (l *tenantLabels) labelOf(tenant string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, again := l.seen[tenant]; again {
		return tenant
	}
	if len(l.seen) == maxTenantLabels {
		return otherTenant
	}
	if l.seen == nil {
		l.seen = map[string]struct{}{}
	}
	l.seen[tenant] = struct{}{}
	return tenant
}

func (l *tenantLabels) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.seen)
}

// tenant returns the label of a request's tenant.
func (m *Metrics) tenant(id string) string {
	tenant := cmp.Or(id, access.DefaultTenant)
	if _, listed := slices.BinarySearch(m.o.Tenants(), tenant); listed {
		return tenant
	}
	return m.tenants.labelOf(tenant)
}

// hasTenant returns a function that reports whether the series of a tenant are kept. With
// Identities all are kept, since such tenants are not listed.
func (m *Metrics) hasTenant() func(tenant string) bool {
	listed := m.o.Tenants()
	return func(tenant string) bool {
		_, found := slices.BinarySearch(listed, tenant)
		return found || tenant == otherTenant || m.o.Identities
	}
}
