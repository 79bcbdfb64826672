// SPDX-License-Identifier: Apache-2.0

const RETRY = 2000; // ms

// follow calls onSample with every sample of a stream and onConnected with whether the agent is
// there. A stream that ends is opened again: at once by the browser, which tells the agent what it
// had last; after a refusal, by us, and then samples come twice.
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
