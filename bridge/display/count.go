// SPDX-License-Identifier: Apache-2.0

package display

import "fmt"

// Count returns a number with a noun, which gets an s unless the number is 1.
func Count[T ~int | ~int64 | ~uint16 | ~uint32 | ~uint64](n T, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
