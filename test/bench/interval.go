// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"slices"
)

// median sorts the values.
func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// leastConfidence is what an interval should have. With fewer than five values none has it.
const leastConfidence = 0.9

// medianInterval returns the distribution-free confidence interval of the median of what n values are drawn from, by
// order statistics: the sorted value of that index, from 0, and its counterpart from the end. It is the narrowest
// with leastConfidence, or that of the smallest and the largest value.
func medianInterval(n int) (index int, confidence float64) {
	confidence = orderConfidence(n, 0)
	for index+1 < (n+1)/2 && orderConfidence(n, index+1) >= leastConfidence {
		index++
		confidence = orderConfidence(n, index)
	}
	return index, confidence
}

// orderConfidence returns the probability that the median is between those sorted values: that more than index, and
// fewer than n - index, of n values are below it.
func orderConfidence(n, index int) float64 {
	below, choose := 0.0, 1.0
	for i := range index + 1 {
		below += choose
		choose *= float64(n-i) / float64(i+1)
	}
	return max(0, 1-2*below/math.Pow(2, float64(n)))
}
