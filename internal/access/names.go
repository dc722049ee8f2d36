// SPDX-License-Identifier: Apache-2.0

package access

import "go.yaml.in/yaml/v3"

// readNames reads a list of distinct names. It reports an empty list, which could mean
// nothing or everything; advice says what to write instead.
func readNames(v value, advice string) []string {
	var names []string
	first := map[string]string{}
	v.List(func(one value) {
		name := one.Name()
		if before, dup := first[name]; dup && name != "" {
			one.Add("is given twice: it is also %s", before)
			return
		}
		first[name] = one.Path
		names = append(names, name)
	})
	if v.Kind == yaml.SequenceNode && len(v.Content) == 0 {
		v.Add("must not be an empty list: %s", advice)
	}
	return names
}

// nameProblem returns what is wrong with a name, empty for a valid one.
func nameProblem(s string) string { return rules.NameProblem(s) }
