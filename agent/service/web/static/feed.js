// SPDX-License-Identifier: Apache-2.0

const RETRY = 2000; // ms

// follow calls onSample with every sample of a stream, and onConnected with true or false when the
// stream is connected or lost. The browser itself reopens a stream that ends, and sends the id of
// its last event. After a refusal, follow opens a new stream, which repeats past samples.
export function follow(url, onSample, onConnected) {
  const open = () => {
    const source = new EventSource(url);
    source.onopen = () => onConnected(true);
    source.onmessage = event => onSample(JSON.parse(event.data));
    source.onerror = () => {
      onConnected(false);
      if (source.readyState === EventSource.CLOSED) {
        setTimeout(open, RETRY);
      }
    };
  };
  open();
}
