// The site can be read from a folder, where browsers refuse workers: search then runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = true; // by which the theme's search knows that it is in one
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((loaded) => {
        frame.onload = () => {
          const inner = frame.contentWindow;
          inner.postMessage = (data) => {
            const event = new MessageEvent("message", { data });
            this.dispatchEvent(event);
            this.onmessage?.(event);
          };
          inner.importScripts = (...scripts) =>
            scripts.reduce((before, src) => before.then(() => load(inner.document, src)), Promise.resolve());
          load(inner.document, url).then(() => loaded(inner));
        };
      });
      frame.srcdoc = "<!doctype html><title></title>";
      document.documentElement.append(frame);
      this.terminate = () => frame.remove();
    }
    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }
  };

  function load(page, src) {
    return new Promise((loaded, failed) => {
      const script = page.createElement("script");
      Object.assign(script, { src, onload: loaded, onerror: failed });
      page.head.append(script);
    });
  }
}
