// Browsers start no Worker in a page that was opened from a folder. The site's search then runs in a hidden frame.
// Material looks for IFrameWorker and awaits importScripts. Without a file of this name it fetches a shim from another host.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const { contentWindow: scope, contentDocument: page } = this.frame;
    page.open();
    page.write("<!doctype html><body></body>");
    page.close();
    const load = (source) =>
      new Promise((resolve, reject) => {
        const script = Object.assign(page.createElement("script"), { src: source, onload: resolve, onerror: reject });
        page.body.append(script);
      });
    scope.importScripts = (...sources) =>
      sources.reduce((loaded, source) => loaded.then(() => load(source)), Promise.resolve());
    scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
    this.scope = scope;
    this.loaded = load(url);
  }

  async postMessage(data) {
    await this.loaded;
    this.scope.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = FrameWorker;
  window.Worker = FrameWorker;
}
