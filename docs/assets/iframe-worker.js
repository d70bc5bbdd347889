/* Search runs in a worker, which browsers refuse to pages that were opened from a folder. Here a
   hidden frame does the same work: it has a window of its own, and messages go both ways. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inside = frame.contentWindow;
      this.waiting = [];
      this.inside = inside;
      inside.postMessage = data => this.tell(this, data);
      this.load(String(url)).then(() => {
        this.waiting.splice(0).forEach(data => this.tell(inside, data));
        this.waiting = null;
      });
    }
    load(url) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script");
        script.src = new URL(url, location.href);
        script.onload = done;
        script.onerror = failed;
        this.inside.document.body.appendChild(script);
      });
    }
    tell(whom, data) {
      setTimeout(() => {
        const message = new MessageEvent("message", { data });
        whom.dispatchEvent(message);
        if (whom.onmessage && whom === this) whom.onmessage(message);
      });
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.tell(this.inside, data);
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
