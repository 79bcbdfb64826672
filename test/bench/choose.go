// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// MatchingJobs returns those of the jobs whose name matches a regular expression.
func MatchingJobs(jobs []Job, pattern string) ([]Job, error) {
	matches, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(jobs), func(j Job) bool { return !matches.MatchString(j.Name) }), nil
}

// ParseContenders returns the names in a comma-separated list. It refuses one that is not known, or is there twice.
func ParseContenders(list string, known []string) ([]string, error) {
	names := strings.Split(list, ",")
	for i, name := range names {
		if !slices.Contains(known, name) || slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("%q is unknown or named twice; known are %s", name, strings.Join(known, ", "))
		}
	}
	return names, nil
}
