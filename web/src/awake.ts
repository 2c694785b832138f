// Keeps the screen on, for whoever wants to watch or to let the model write. A browser lets go of it whenever the
// tab is hidden, so it is asked again when the tab is seen again.

export class Awake {
  private wanted = false;
  private lock: WakeLockSentinel | null = null;

  /** `refused` gets the browser's reason, for instance that the battery is low. */
  constructor(private readonly refused: (reason: string) => void) {
    document.addEventListener("visibilitychange", () => void this.hold());
  }

  want(wanted: boolean): void {
    this.wanted = wanted;
    if (wanted) void this.hold();
    else void this.lock?.release();
  }

  private async hold(): Promise<void> {
    const { wakeLock } = navigator as { wakeLock?: WakeLock };
    if (!this.wanted || document.hidden || wakeLock === undefined || this.lock?.released === false) return;
    try {
      this.lock = await wakeLock.request("screen");
      // It may have been switched off while the browser thought about it.
      if (!this.wanted) await this.lock.release();
    } catch (caught) {
      this.refused(caught instanceof Error ? caught.message : String(caught));
    }
  }
}
