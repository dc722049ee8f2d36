// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"slices"
	"sync"

	"github.com/holdgate/holdgate/internal/access"
)

const (
	// maxTenantLabels is how many tenants that are in no list have a label of their own.
	maxTenantLabels = 1000
	// otherTenant is the label of all further tenants.
	otherTenant = "other"
)

// tenantLabels are the tenants with a label of their own among those that are in no list:
// the first ones of identities.
type tenantLabels struct {
	mu   sync.Mutex
	seen map[string]struct{}
}

// of returns the label of a tenant that is in no list.
func (l *tenantLabels) of(tenant string) string {
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
	return m.tenants.of(tenant)
}

// hasTenant returns a function that reports whether the series of a tenant stay. Tenants
// of identities are in no list: those that have a label of their own keep it.
func (m *Metrics) hasTenant() func(tenant string) bool {
	listed := m.o.Tenants()
	return func(tenant string) bool {
		_, found := slices.BinarySearch(listed, tenant)
		return found || tenant == otherTenant || m.o.Identities
	}
}
