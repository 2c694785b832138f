// The comparison: recorded runs and how they are played, experiments and their addresses, lanes that run live.

import { readFileSync } from "node:fs";
import { expect, type Locator, type Page, test } from "@playwright/test";
import type { RecordedRun } from "../../crates/wasm/run";
import { readRun } from "../src/replay.ts";
import { experiments } from "../src/strings.en.ts";
import { ask, errors, fakeGpu, mock, open, parts } from "./page.ts";
import { allRuns, compared, lanes, serve, STORY } from "./runs.ts";

let runs: Map<string, RecordedRun>;

test.beforeAll(async () => {
  runs = await allRuns();
});

test.beforeEach(async ({ page }) => {
  await serve(page, runs);
});

const compare = (page: Page) => ({
  act: page.locator("#act"),
  panel: page.getByRole("tabpanel", { name: "Compare" }),
  badge: page.locator(".badge"),
  slider: page.getByRole("slider", { name: "Position in the run" }),
  place: page.locator(".place"),
  pace: page.getByRole("combobox", { name: "Pace" }),
  lane: (name: string) => page.getByRole("group", { name, exact: true }),
  text: (name: string) => page.getByRole("group", { name: `Text of ${name}` }),
  names: page.locator(".lane h2"),
});

/** Opens an address and lets its recording play to the end. */
async function atEnd(page: Page, query: string, backend = "backend=cpu"): Promise<void> {
  await page.goto(`/?${backend}${query}`);
  const { slider } = compare(page);
  await slider.focus();
  await page.keyboard.press("End");
  await expect(slider).toHaveValue((await slider.getAttribute("max")) ?? "");
}

test.describe("a first visit", () => {
  test("is alive within a second, without the module, the worker or the model", async ({ page }) => {
    const found = errors(page);
    const fetched: string[] = [];
    page.on("request", (request) => fetched.push(new URL(request.url()).pathname));
    // When the page itself saw its first words and its first curve.
    await page.addInitScript(() => {
      const look = (): void => {
        const here = document.querySelector(".words span") !== null && document.querySelector("#cost .stage path") !== null;
        if (here) Object.assign(window, { alive: performance.now() });
        else requestAnimationFrame(look);
      };
      requestAnimationFrame(look);
    });
    // A machine that does other things as well is given three tries.
    const tries: number[] = [];
    for (let i = 0; i < 3; i += 1) {
      await page.goto("/?backend=cpu");
      await page.waitForFunction(() => "alive" in window);
      tries.push(await page.evaluate(() => (window as unknown as { alive: number }).alive));
    }
    console.log(`alive after ${tries.map(Math.round).join(", ")} ms`);
    expect(Math.min(...tries)).toBeLessThan(1000);
    expect(fetched.filter((path) => /pkg|worker|gguf/.test(path))).toEqual([]);
    const { badge, act, names } = compare(page);
    await expect(badge).toHaveText(/^Recorded run · made by sinkstream 0\.1\.0 on 2026-01-31, 0123456\./);
    await expect(act).toHaveText("Take the sinks away");
    await expect(names).toHaveText(["sinks 4+60"]);
    await expect(page.locator("button.primary:visible")).toHaveCount(1);
    await expect(page.getByRole("tab", { name: "Compare" })).toHaveAttribute("aria-selected", "true");
    expect(found).toEqual([]);
  });

  test("the button brings the lane without sinks: the same text to the letter until its first word has left", async ({ page }) => {
    await page.goto("/?backend=cpu");
    const { act, text, names, lane, pace, slider } = compare(page);
    await expect.poll(async () => Number(await slider.inputValue())).toBeGreaterThan(10);
    await act.click();
    await expect(names).toHaveText(["window 64", "sinks 4+60"]);
    await expect(act).toHaveText("Pause");
    await pace.selectOption("rush");
    await expect(act).toHaveText("Again", { timeout: 30_000 });
    const [window, sinks] = [await text("window 64").innerText(), await text("sinks 4+60").innerText()];
    const [left, kept] = ["first word left here", "first word left here, sinks stay"];
    expect(window.split(left)[0]).toBe(sinks.split(kept)[0]);
    expect(window.split(left)[0]).toContain("The lamp at Gannet Point");
    expect(window).toContain(`${left} x.x`.replace(`${left} `, left));
    expect(sinks.split(kept)[1]).not.toContain("x.x");
    // What was asked is shown as the question alone.
    expect(window.startsWith("Tell me a story.")).toBe(true);
    await expect(lane("window 64")).toContainText(/▲ repeating itself since token \d+ · first word left 1\d\d tokens ago/);
    await expect(lane("sinks 4+60")).toContainText("● steady · sinks kept");
    await act.click();
    await expect(act).toHaveText("Pause");
    await expect.poll(async () => Number(await slider.inputValue())).toBeGreaterThan(0);
  });

  test("what happened is told with the numbers of now", async ({ page }) => {
    await atEnd(page, "&x=take-sinks-away");
    const why = page.getByRole("button", { name: "What happened?" });
    await expect(page.locator("#happened")).toBeHidden();
    await why.click();
    await expect(why).toHaveAttribute("aria-expanded", "true");
    await expect(page.locator("#happened")).toContainText("sends 36% of its attention to the first four tokens");
    await expect(page.locator("#happened")).toContainText("The window lane lost them 171 tokens ago");
  });

  test("with reduced motion nothing moves: the last frame stands", async ({ page }) => {
    await page.emulateMedia({ reducedMotion: "reduce" });
    await page.goto("/?backend=cpu");
    const { slider, act } = compare(page);
    await expect(slider).toHaveValue("213");
    await act.click();
    await expect(slider).toHaveValue("213");
    await expect(compare(page).names).toHaveText(["window 64", "sinks 4+60"]);
  });

  test("who has a model kept comes back to the chat; the address can ask for either", async ({ page }) => {
    await mock(page);
    await open(page, "&backend=cpu");
    await expect(page.getByRole("tab", { name: "Chat" })).toHaveAttribute("aria-selected", "true");
    await page.goto("/?backend=cpu");
    await expect(page.getByRole("tab", { name: "Chat" })).toHaveAttribute("aria-selected", "true");
    await expect(parts(page).status).toContainText("Ready.");
    await page.goto("/?backend=cpu&view=compare");
    await expect(compare(page).act).toBeVisible();
    await page.goto("/?backend=cpu&x=tiny");
    await expect(compare(page).act).toBeVisible();
  });
});

test.describe("the player", () => {
  test("plays, pauses and steps by its keys, and is one stop of the Tab key", async ({ page }) => {
    await page.goto("/?backend=cpu&x=take-sinks-away&play=0");
    const { slider, place, act } = compare(page);
    await expect(place).toHaveText("0 of 300 tokens");
    await slider.focus();
    await page.keyboard.press("ArrowRight");
    await expect(place).toHaveText("1 of 300 tokens");
    for (let i = 0; i < 4; i += 1) await page.keyboard.press("ArrowRight");
    await page.keyboard.press("ArrowLeft");
    await expect(place).toHaveText("4 of 300 tokens");
    expect(await compare(page).text("dense").innerText()).toBe(STORY.split(/(?<= )/).slice(0, 4).join(""));
    await page.keyboard.press("Space");
    await expect(act).toHaveText("Pause");
    await expect.poll(async () => Number(await slider.inputValue())).toBeGreaterThan(6);
    await page.keyboard.press("Space");
    await expect(act).toHaveText("Go on");
    const rests = await slider.inputValue();
    await page.waitForTimeout(300);
    expect(await slider.inputValue()).toBe(rests);
    await page.keyboard.press("Shift+Tab");
    expect(await page.evaluate(() => document.activeElement?.closest(".player"))).toBeNull();
    await page.keyboard.press("Tab");
    await expect(slider).toBeFocused();
    await page.keyboard.press("Tab");
    await expect(compare(page).pace).toBeFocused();
  });

  test("its buttons do the same, and it can be dragged to any place", async ({ page }) => {
    await page.goto("/?backend=cpu&x=take-sinks-away&play=0");
    const { slider, place, pace } = compare(page);
    const player = page.getByRole("group", { name: "Player" });
    await player.getByRole("button", { name: "On one token" }).click();
    await player.getByRole("button", { name: "On one token" }).click();
    await player.getByRole("button", { name: "Back one token" }).click();
    await expect(place).toHaveText("1 of 300 tokens");
    await slider.fill("200");
    await expect(place).toHaveText("200 of 300 tokens");
    await expect(page.locator("#cost .stage")).toContainText("first word left");
    await slider.fill("100");
    await expect(place).toHaveText("100 of 300 tokens");
    await expect(page.locator("#cost .stage")).not.toContainText("first word left");
    await pace.selectOption("rush");
    await player.getByRole("button", { name: "Play" }).click();
    await expect(place).toHaveText("300 of 300 tokens", { timeout: 30_000 });
  });

  test("it rests where the first word has just left", async ({ page }) => {
    await page.goto("/?backend=cpu&x=take-sinks-away&play=0");
    const { slider, pace, act } = compare(page);
    await slider.fill("120");
    await pace.selectOption("rush");
    await act.click();
    await expect(slider).toHaveValue("130");
    await page.waitForTimeout(700);
    await expect(slider).toHaveValue("130");
    await expect(slider).toHaveValue("300");
  });
});

test.describe("on a screen of 1440 by 900", () => {
  for (const [x, count] of [
    ["hero", 3],
    ["how-many", 4],
    ["two-bits", 4],
    ["past-8192", 2],
  ] as const) {
    test(`${x}: ${count} lanes, and every figure but the last has begun above the fold`, async ({ page }) => {
      await page.setViewportSize({ width: 1440, height: 900 });
      // The status has most to say where WebGPU finds no processor.
      await fakeGpu(page, null);
      await atEnd(page, `&x=${x}`, "");
      await expect(compare(page).names).toHaveCount(count);
      await expect(parts(page).status).toContainText("offers no graphics processor");
      const figures = page.getByRole("region", { name: "Figures" });
      await expect(page.locator("#attention .stage canvas")).toBeVisible();
      const seen = await figures.evaluate((column) => {
        const fold = column.getBoundingClientRect().bottom;
        return [...column.querySelectorAll("figure")].map((figure) => ({
          id: figure.id,
          // How much of it there is above the fold, and whether its name is a part of that.
          above: fold - figure.getBoundingClientRect().top,
          named: (figure.querySelector("h3")?.getBoundingClientRect().bottom ?? fold + 1) <= fold,
          wide: figure.scrollWidth - figure.clientWidth,
        }));
      });
      expect(seen.map(({ id }) => id)).toEqual(["cost", "cache", "attention", "memory", "time", "knows"]);
      for (const { id, above, named, wide } of seen.slice(0, 5)) {
        expect(above, id).toBeGreaterThan(50);
        expect([named, wide], id).toEqual([true, 0]);
      }
      // The page itself does not scroll; the column does, and is cut by its edge and not by a gap. Keys reach it.
      expect(await page.evaluate(() => document.documentElement.scrollHeight - innerHeight)).toBeLessThanOrEqual(0);
      await figures.focus();
      await page.keyboard.press("End");
      await expect(page.locator("#knows")).toBeInViewport({ ratio: 0.5 });
      expect(await page.evaluate(() => scrollY)).toBe(0);
    });
  }
});

test.describe("lanes that read the same text", () => {
  test("tint each word by what it costs more than with everything kept", async ({ page }) => {
    await atEnd(page, "&x=take-sinks-away");
    const { text } = compare(page);
    // The stand-in's window loses two nats more from its first word on: the second of three steps.
    await expect(text("window 128").locator(".w2")).toHaveCount(171);
    await expect(text("window 128").locator(".w1, .w3, .b1")).toHaveCount(0);
    await expect(text("sinks 4+124").locator("[class^=w]")).toHaveCount(0);
    await expect(text("dense").locator("[class^=w], [class^=p]")).toHaveCount(0);
    const first = text("window 128").locator(".w2").first();
    await expect(first).toHaveAttribute("data-i", "129");
    expect(await first.evaluate((e) => getComputedStyle(e).textDecorationThickness)).toBe("2px");
    await expect(text("window 128").locator(".left-here")).toHaveText("first word left here");
    await expect(text("dense").locator(".left-here")).toHaveCount(0);
  });

  test("say how sure each was of the word after the mark", async ({ page }) => {
    await page.goto("/?backend=cpu&x=take-sinks-away&play=0");
    const { slider, lane } = compare(page);
    await slider.fill("100");
    await expect(lane("window 128")).toContainText("The first word leaves in 28 tokens.");
    await slider.fill("130");
    // Token 129 costs 1 + 7 / 8 nats, the window two more, sinks a tenth more.
    const word = STORY.split(/(?<=\s)(?=\S)/)[129]?.trim() ?? "";
    await expect(lane("window 128")).toContainText(`Sure of “${word}”, the word behind the mark:2%`);
    await expect(lane("sinks 4+124")).toContainText(":14%");
    await expect(lane("dense")).toContainText(":15%");
    const width = (name: string) => lane(name).locator(".sure-bar").evaluate((e) => e.getBoundingClientRect().width);
    expect((await width("window 128")) / (await width("dense"))).toBeCloseTo(Math.exp(-2), 1);
  });

  test("are said to lose the thread, and one that reads its tokens again is one click away", async ({ page }) => {
    await atEnd(page, "&x=take-sinks-away");
    const { lane, names } = compare(page);
    await expect(lane("window 128")).toContainText("▲ losing the thread since token 214");
    await expect(lane("window 128")).toHaveClass(/wrong/);
    await expect(lane("sinks 4+124")).not.toHaveClass(/wrong/);
    await expect(lane("sinks 4+124").getByRole("button")).toBeHidden();
    await lane("window 128").getByRole("button", { name: "Read the last 128 again" }).click();
    await expect(names).toHaveText(["window 128", "sinks 4+124", "dense", "recompute 128"]);
    await expect(lane("recompute 128")).toContainText("● steady");
    await expect(compare(page).slider).toHaveValue("300");
  });

  test("without the model, and none recorded, reading again takes nothing away", async ({ page }) => {
    // The first story has no lane that recomputes.
    await page.goto("/?backend=cpu&play=0");
    await expect(compare(page).act).toHaveText("Take the sinks away");
    await compare(page).act.click();
    await compare(page).slider.focus();
    await page.keyboard.press("End");
    await expect(compare(page).slider).toHaveValue("213");
    const text = await compare(page).text("window 64").innerText();
    await compare(page).lane("window 64").getByRole("button", { name: "Read the last 64 again" }).click();
    await expect(parts(page).status).toContainText("Reading again takes the model");
    await expect(compare(page).names).toHaveText(["window 64", "sinks 4+60"]);
    expect(await compare(page).text("window 64").innerText()).toBe(text);
  });

  test("a click on a word moves the cursor of all figures", async ({ page }) => {
    await atEnd(page, "&x=take-sinks-away");
    await compare(page).text("window 128").locator('[data-i="290"]').click();
    await expect(page.locator("#cost").getByRole("slider")).toHaveAttribute("aria-valuetext", /token 290/);
  });
});

test.describe("experiments", () => {
  const NAMES = Object.keys(experiments) as (keyof typeof experiments)[];

  for (const name of NAMES) {
    test(`${name}: by the menu and by its address`, async ({ page }) => {
      const found = errors(page);
      await page.goto("/?backend=cpu");
      await page.getByRole("button", { name: "Experiments" }).click();
      const { title, what, why, look, paper } = experiments[name];
      await page.getByRole("link", { name: title, exact: true }).click();
      await expect(page.getByRole("dialog")).toBeHidden();
      await expect(page).toHaveURL(new RegExp(`[?&]x=${name}(&|$)`));
      const { panel, names, place, act } = compare(page);
      const run = runs.get(name) as RecordedRun;
      const told = run.lanes.filter(({ settings }) => settings.policy !== "recompute");
      await expect(names).toHaveText(told.map((lane) => lane.name));
      await expect(panel.getByRole("heading", { name: title, exact: true })).toBeVisible();
      for (const text of [what, `Look at ${look}`, why, paper]) await expect(panel).toContainText(text);
      // Ours is what the run itself says.
      for (const { name: lane, summary } of run.lanes) {
        await expect(page.locator(".against")).toContainText(new RegExp(`${escaped(lane)} ${digits(summary[0]?.perplexity ?? 0)}`));
      }
      await expect(place).toHaveText(/^[1-9]\d* of /);
      await expect(act).toHaveText("Pause");
      if (name === "past-8192") await expect(panel.locator(".words").first()).toHaveText(/numbers only/);
      if (name === "past-8192" || name === "wrong-axis") await expect(page.locator(".badge")).toContainText("a recording only");
      await page.reload();
      await expect(panel.getByRole("heading", { name: title, exact: true })).toBeVisible();
      await page.goBack();
      await expect(panel.getByRole("heading", { name: title, exact: true })).toBeHidden();
      await expect(names).toHaveText(["sinks 4+60"]);
      expect(found).toEqual([]);
    });
  }

  test("the address changes what they set, and is written again as it was", async ({ page }) => {
    await mock(page);
    const query = "/?x=take-sinks-away&backend=cpu&lane=window:32&lane=sinks:4%2B28:int4&fig=memory&t=40";
    await page.goto(query);
    const { names, act } = compare(page);
    await expect(names).toHaveText(["window 32", "sinks 4+28 int4"]);
    await expect(page.locator(".notice")).toContainText("load the model to run them here");
    await act.click();
    await expect(parts(page).status).toContainText("load the model to run them here");
    await page.getByRole("tab", { name: "Chat" }).click();
    await page.getByRole("tab", { name: "Compare" }).click();
    const params = new URL(page.url()).searchParams;
    expect(params.getAll("lane")).toEqual(["window:32", "sinks:4+28:int4"]);
    expect(Object.fromEntries(params)).toMatchObject({ x: "take-sinks-away", fig: "memory", t: "40", view: "compare" });
  });

  test("t= stands still at a token, a run has an address, and one that is not there is named", async ({ page }) => {
    await page.goto("/?backend=cpu&x=take-sinks-away&t=257");
    const { place, names, act } = compare(page);
    await expect(place).toHaveText("258 of 300 tokens");
    await expect(act).toHaveText("Go on");
    await page.goto("/?backend=cpu&run=runs/tiny.json");
    await expect(names).toHaveText(["window 16", "sinks 4+12", "dense"]);
    await page.goto("/?backend=cpu&x=nowhere");
    await expect(page.locator(".notice")).toHaveText("The recorded run nowhere.json is not here.");
    await page.context().route("**/other.json", (route) => route.fulfill({ json: { format: "sinkstream-run", version: 9 } }));
    await page.goto("/?backend=cpu&run=other.json");
    await expect(page.locator(".notice")).toContainText("it has version 9, and this page knows 1");
  });

  test("on a phone two of four lanes wait behind a button", async ({ page }) => {
    await page.setViewportSize({ width: 390, height: 844 });
    await page.goto("/?backend=cpu&x=how-many&play=0");
    const { lane, names } = compare(page);
    await expect(names).toHaveCount(4);
    await expect(lane("sinks 8+120")).toBeHidden();
    const more = page.getByRole("button", { name: "Show 2 more lanes" });
    await more.click();
    await expect(lane("sinks 8+120")).toBeVisible();
    await expect(lane("dense")).toBeVisible();
    await expect(more).toBeHidden();
  });

  test("on a phone a tap on a lane, or its button, opens its whole text, which goes on in it", async ({ page }) => {
    await page.setViewportSize({ width: 390, height: 844 });
    await page.goto("/?backend=cpu&x=take-sinks-away&play=0");
    const { slider, text, lane } = compare(page);
    await slider.fill("200");
    const words = text("window 128");
    const height = () => words.evaluate((e) => e.clientHeight);
    const [whole, less] = ["Whole text", "Less"].map((name) => page.getByRole("button", { name: `${name} window 128`, exact: true }));
    const cursor = page.locator("#cost").getByRole("slider");
    // A figure is drawn while it is seen.
    const reads = async (token: number): Promise<void> => {
      await cursor.scrollIntoViewIfNeeded();
      await expect(cursor).toHaveAttribute("aria-valuetext", new RegExp(`^token ${token},`));
    };
    await reads(199);
    await expect(words.locator('[data-i="199"]')).toBeVisible();
    const [closed, row] = [await height(), (await lane("window 128").locator(".head").boundingBox())?.height];
    // Four lines, and the button makes the row of the name no higher.
    expect(closed).toBe(108);
    expect(row).toBeLessThan(30);
    await expect(whole as Locator).toHaveAttribute("aria-expanded", "false");
    // The first tap opens it, on a word too: the cursor stays where it was.
    await words.locator('[data-i="199"]').click();
    await expect(less as Locator).toHaveAttribute("aria-expanded", "true");
    await expect(less as Locator).toHaveAttribute("aria-controls", (await words.getAttribute("id")) ?? "");
    expect(await height()).toBeGreaterThan(550);
    // The other lanes are as they were.
    expect(await text("sinks 4+124").evaluate((e) => e.clientHeight)).toBe(closed);
    // What comes is seen in it, at its end; then a tap moves the cursor, as elsewhere.
    const open = await height();
    await slider.fill("240");
    const inside = (i: number) =>
      words.evaluate((e, i) => {
        const [box, token] = [e.getBoundingClientRect(), e.querySelector(`[data-i="${i}"]`)?.getBoundingClientRect()];
        return token !== undefined && token.top >= box.top && token.bottom <= box.bottom;
      }, i);
    await expect.poll(() => inside(239)).toBe(true);
    expect(await height()).toBe(open);
    await reads(239);
    await words.locator('[data-i="230"]').click();
    await reads(230);
    // Escape closes it from within, and the button has the focus.
    await words.focus();
    await page.keyboard.press("Escape");
    expect(await height()).toBe(closed);
    await expect(whole as Locator).toBeFocused();
    await page.keyboard.press("Enter");
    expect(await height()).toBe(open);
    await page.keyboard.press("Space");
    expect(await height()).toBe(closed);
    // Where a lane has its lines, there is no button, and a press on a word is for the cursor.
    await page.setViewportSize({ width: 1280, height: 800 });
    await expect(whole as Locator).toBeHidden();
    await words.locator('[data-i="220"]').click();
    await reads(220);
    await expect(lane("window 128")).not.toHaveClass(/open/);
  });
});

const escaped = (text: string): string => text.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");
/** The first three digits of a number. */
const digits = (n: number): string => escaped(n.toPrecision(3));

test.describe("lanes that run live", () => {
  test("the button runs them, pauses them and goes on; the chat is read again afterwards", async ({ page }) => {
    const heard: string[] = [];
    page.on("console", (message) => heard.push(message.text()));
    await mock(page, { delay: 3, most: 5 });
    await open(page, "&backend=cpu");
    await ask(page, "Hello");
    await expect(parts(page).note).toHaveText("5 tokens.");
    await page.getByRole("button", { name: "Experiments" }).click();
    await page.getByRole("link", { name: "Take the sinks away" }).click();
    const { act, badge, place, lane, names } = compare(page);
    await expect(badge).toHaveText(/^Recorded run/);
    await compare(page).slider.fill("0");
    await act.click();
    await expect(badge).toHaveText(/^Live · running on CPU, one thread/);
    await expect(parts(page).status).toContainText("The model runs the lanes of the comparison.");
    await expect(names).toHaveText(["window 128", "sinks 4+124", "dense"]);
    await expect(place).toHaveText(/^\d+ of 300 tokens$/);
    await act.click();
    await expect(act).toHaveText("Go on");
    const paused = await place.textContent();
    await page.waitForTimeout(300);
    const rested = await place.textContent();
    await page.waitForTimeout(300);
    expect(await place.textContent()).toBe(rested);
    expect(paused).not.toBe("300 of 300 tokens");
    await act.click();
    await expect(act).toHaveText("Again", { timeout: 30_000 });
    await expect(place).toHaveText("300 of 300 tokens");
    await expect(lane("window 128")).toContainText("▲ losing the thread since token 214");
    const told = heard.find((text) => text.startsWith("compare "));
    expect(told).toContain('"policy":"window","sinks":0,"recent":128');
    expect(told).toContain('"mode":"forced","text":"The lamp at Gannet Point');
    await expect(parts(page).status).toContainText("Ready.");
    expect(heard.filter((text) => text.startsWith("resume "))).toHaveLength(1);
    await page.getByRole("tab", { name: "Chat" }).click();
    await expect(page.locator(".turn.page")).toHaveText("Refilled from the text: lanes were compared meanwhile.");
    await ask(page, "And then?");
    await expect(parts(page).note).toHaveText("5 tokens.");
  });

  test("going to the chat ends them, and what they read stays", async ({ page }) => {
    await mock(page, { delay: 5, most: 5 });
    await open(page, "&backend=cpu&x=take-sinks-away&view=compare&play=0");
    const { act, place, badge } = compare(page);
    await act.click();
    await expect(place).toHaveText(/^[1-9]\d+ of 300 tokens$/);
    await page.getByRole("tab", { name: "Chat" }).click();
    await expect(parts(page).status).toContainText("Ready.");
    await ask(page, "Hello");
    await expect(parts(page).note).toHaveText("5 tokens.");
    await page.getByRole("tab", { name: "Compare" }).click();
    await expect(badge).toHaveText(/^Live/);
    await expect(place).toHaveText(/^[1-9]\d+ of 300 tokens$/);
    await expect(act).toHaveText("Again");
  });

  test("free lanes answer the recording's question, until they have written all", async ({ page }) => {
    const heard: string[] = [];
    page.on("console", (message) => heard.push(message.text()));
    await mock(page);
    await open(page, "&backend=cpu&view=compare&play=0&n=150&seed=7");
    const { act, names, text, lane } = compare(page);
    await act.click();
    await expect(names).toHaveText(["window 64", "sinks 4+60"]);
    await expect(act).toHaveText("Again", { timeout: 30_000 });
    await expect(text("window 64")).toContainText("x.x x.x");
    await expect(lane("window 64")).toContainText("has ended");
    const told = heard.find((line) => line.startsWith("compare ")) ?? "";
    expect(told).toContain('"prompt":"Tell me a story."');
    expect(told).toContain('"repetition_penalty":1.2,"seed":7');
    expect(told).toContain('"max_tokens":150');
  });

  test("a lane that recomputes follows behind, and says how far", async ({ page }) => {
    await mock(page, { delay: 4 });
    await open(page, "&backend=cpu&view=compare&x=take-sinks-away&play=0");
    const { act, lane, names } = compare(page);
    await act.click();
    const again = lane("window 128").getByRole("button", { name: "Read the last 128 again" });
    await again.click({ timeout: 30_000 });
    await expect(names).toHaveText(["window 128", "sinks 4+124", "dense", "recompute 128"]);
    await expect(page).toHaveURL(/lane=recompute%3A128/);
    await expect(lane("recompute 128")).toContainText(/\d+ tokens behind/);
    await expect(act).toHaveText("Again", { timeout: 30_000 });
    await expect(lane("recompute 128")).toContainText("● steady");
  });

  test("the attention of a head is asked for with the next token", async ({ page }) => {
    await mock(page, { delay: 40 });
    await open(page, "&backend=cpu&view=compare&x=take-sinks-away&play=0");
    const { act, place } = compare(page);
    await act.click();
    await expect(place).toHaveText(/^[1-9]\d+ of 300 tokens$/);
    const map = page.locator("#attention").getByRole("gridcell").first();
    await map.focus();
    await page.keyboard.press("Enter");
    await expect(page.locator("#attention")).toContainText("Layer 0, head 0 gives");
  });

  test("a comparison that breaks off says so, and the chat comes back", async ({ page }) => {
    await mock(page, { compareRejectAt: 40, most: 5 });
    await open(page, "&backend=cpu&view=compare&x=take-sinks-away&play=0");
    const { act, place } = compare(page);
    await act.click();
    await expect(parts(page).status).toContainText("Ready.");
    await expect(place).toHaveText("40 of 300 tokens");
    await expect(act).toHaveText("Again");
    await page.getByRole("tab", { name: "Chat" }).click();
    await ask(page, "Hello");
    await expect(parts(page).note).toHaveText("5 tokens.");
  });

  test("while an answer is written the lanes wait", async ({ page }) => {
    await mock(page, { delay: 20 });
    await open(page, "&backend=cpu");
    await ask(page, "Hello");
    await page.getByRole("tab", { name: "Compare" }).click();
    await compare(page).slider.fill("0");
    await compare(page).act.click();
    await expect(parts(page).status).toContainText("The model is busy with the conversation");
  });
});

test.describe("a message to all lanes", () => {
  const QUESTION = "Why does the sea move?";

  test("without a model it stays in the box, and goes out when the model was loaded for it", async ({ page }) => {
    await mock(page);
    const fetched: string[] = [];
    page.on("request", (request) => fetched.push(request.url()));
    await page.goto("/?backend=cpu&view=compare&play=0");
    const { names, badge, text, act } = compare(page);
    const { message, send, status } = parts(page);
    await expect(names).toHaveText(["sinks 4+60"]);
    await expect(parts(page).load).toBeEnabled();
    await message.fill("  ");
    await send.click();
    await expect(status).toContainText("The message is empty");
    await message.fill(QUESTION);
    await message.press("Enter");
    await expect(status).toContainText("Your message stays in the box.");
    await expect(page.getByText("SmolLM2-135M-Instruct, 98 MB").last()).toBeVisible();
    await page.getByRole("button", { name: "Not now" }).click();
    await expect(message).toHaveValue(QUESTION);
    await expect(message).toBeFocused();
    await send.click();
    expect(fetched.filter((url) => /gguf|wasm/.test(url))).toEqual([]);
    await page.getByRole("button", { name: "Load it and send" }).click();
    await expect(badge).toContainText("Live");
    await expect(message).toHaveValue("");
    await expect(message).toBeFocused();
    await expect(act).toHaveText("Again", { timeout: 30_000 });
    await expect(names).toHaveText(["window 64", "sinks 4+60"]);
    for (const name of ["window 64", "sinks 4+60"]) await expect(text(name)).toContainText(QUESTION);
    const url = new URL(page.url());
    expect(Object.fromEntries(url.searchParams)).toMatchObject({ text: "own", mode: "free" });
    expect(decodeURIComponent(url.hash)).toBe(`#text=${QUESTION}`);
    // The conversation was not asked.
    await page.getByRole("tab", { name: "Chat" }).click();
    await expect(page.locator(".turn.you")).toHaveCount(0);
  });

  test("with one, lanes that read a text answer at once, and leave one question for the next", async ({ page }) => {
    await mock(page, { delay: 5 });
    await open(page, "&backend=cpu&view=compare&x=take-sinks-away&play=0");
    const { text, badge, names } = compare(page);
    const { message, send } = parts(page);
    await ask(page, QUESTION);
    await expect(badge).toContainText("Live");
    await expect(text("dense")).toContainText(QUESTION);
    await expect(names).toHaveText(["window 128", "sinks 4+124", "dense"]);
    await expect(send).toBeEnabled();
    await message.fill("And why is it salt?");
    await message.press("Enter");
    await expect(text("dense")).toContainText("And why is it salt?");
    await expect(text("dense")).not.toContainText(QUESTION);
    // Escape pauses them, as it stops an answer.
    await page.keyboard.press("Escape");
    await expect(compare(page).act).toHaveText("Go on");
    await expect(page.locator("button.primary:visible")).toHaveCount(1);
  });

  test("an earlier message that is being changed waits in the chat", async ({ page }) => {
    await mock(page, { most: 3 });
    await open(page, "&backend=cpu&view=chat");
    await ask(page, "Hello");
    await expect(parts(page).note).toHaveText("3 tokens.");
    await page.getByRole("button", { name: "Edit, turn 1" }).click();
    const editing = page.getByText("You are changing an earlier message.");
    await expect(editing).toBeVisible();
    await page.getByRole("tab", { name: "Compare" }).click();
    await expect(editing).toBeHidden();
    await page.keyboard.press("Escape");
    await expect(parts(page).message).toHaveValue("Hello");
    await page.getByRole("tab", { name: "Chat" }).click();
    await expect(editing).toBeVisible();
    await page.keyboard.press("Escape");
    await expect(editing).toBeHidden();
    await expect(parts(page).message).toHaveValue("");
  });

  test("its box is the chat's, in one line; it is there from the start, and at the foot of a phone", async ({ page }) => {
    await page.goto("/?backend=cpu&view=compare&play=0");
    const { message, send } = parts(page);
    const form = page.locator(".composer");
    const tall = async () => (await form.boundingBox())?.height ?? 0;
    await expect(compare(page).names).toHaveCount(1);
    expect(await tall()).toBeLessThan(64);
    await expect(send).toBeInViewport();
    await expect(page.getByRole("button", { name: "Stop" })).toBeHidden();
    await message.fill("half a thought");
    await page.getByRole("tab", { name: "Chat" }).click();
    await expect(message).toHaveValue("half a thought");
    await expect(page.getByRole("button", { name: "Stop" })).toBeVisible();
    await page.getByRole("tab", { name: "Compare" }).click();
    await page.setViewportSize({ width: 390, height: 844 });
    await page.locator(".lane").scrollIntoViewIfNeeded();
    expect(await tall()).toBeLessThan(70);
    const { y = 0, height = 0 } = (await form.boundingBox()) ?? {};
    expect(y + height).toBeCloseTo(844, 0);
    for (const part of [message, send]) expect((await part.boundingBox())?.height).toBeGreaterThanOrEqual(44);
  });
});

test.describe("texts and files", () => {
  const OWN = "One two three four. ".repeat(30);

  test("a text of one's own never leaves the tab, and is in the address behind # alone", async ({ page }) => {
    await mock(page);
    await page.goto("/?backend=cpu");
    await expect(compare(page).names).toHaveCount(1);
    await page.getByText("Another text, and runs as files").click();
    await page.getByLabel("Your own text").fill(OWN);
    await page.getByRole("button", { name: "Use this text" }).click();
    await expect(parts(page).status).toContainText("Only the model can read your text");
    await expect(page).toHaveURL(/#text=One%20two/);
    const sent: string[] = [];
    page.on("request", (request) => sent.push(`${request.url()} ${request.postData() ?? ""}`));
    await page.reload();
    await parts(page).load.click();
    await expect(parts(page).status).toContainText("Ready.");
    await compare(page).act.click();
    await expect(compare(page).act).toHaveText("Again", { timeout: 30_000 });
    await expect(compare(page).place).toHaveText("120 of 120 tokens");
    await expect(compare(page).text("window 64")).toContainText("One two three four.");
    expect(sent.filter((text) => /One(%20|\+| )two/.test(text.split("#")[0] ?? ""))).toEqual([]);
  });

  test("an empty text is not read", async ({ page }) => {
    await mock(page);
    await open(page, "&backend=cpu&view=compare&play=0");
    await page.getByText("Another text, and runs as files").click();
    await page.getByRole("button", { name: "Use this text" }).click();
    await expect(parts(page).status).toContainText("There is no text to read");
  });

  test("a text file that is dropped is read by the lanes", async ({ page }) => {
    await mock(page);
    await open(page, "&backend=cpu&view=compare&play=0");
    await drop(page, "mine.txt", "text/plain", OWN);
    await expect(compare(page).act).toHaveText("Again", { timeout: 30_000 });
    await expect(compare(page).text("sinks 4+60")).toContainText("One two three four.");
  });

  test("a live run is saved as the program's format, and the page plays it again", async ({ page }) => {
    await mock(page);
    await open(page, "&backend=cpu&view=compare&x=take-sinks-away&play=0&n=200");
    const { act, names, badge, text } = compare(page);
    await act.click();
    await expect(act).toHaveText("Again", { timeout: 30_000 });
    const live = await text("window 128").innerText();
    await page.getByText("Another text, and runs as files").click();
    const saving = page.waitForEvent("download");
    await page.getByRole("button", { name: "Save this run" }).click();
    const file = readFileSync(await (await saving).path(), "utf8");
    expect(readRun(file, "run.json")).toMatchObject({ mode: "forced", count: 200, every: 1, prompt: 0 });
    await page.goto("/?backend=cpu&view=compare&play=0");
    await drop(page, "run.json", "application/json", file);
    await expect(names).toHaveText(["window 128", "sinks 4+124", "dense"]);
    await expect(badge).toHaveText(/^Recorded run · made by sinkstream/);
    await compare(page).slider.focus();
    await page.keyboard.press("End");
    await expect(text("window 128")).toHaveText(live);
    await drop(page, "bad.json", "application/json", '{"format":"sinkstream-run","version":1}');
    await expect(parts(page).status).toContainText("bad.json cannot be played: “title” is missing");
  });

  test("a file with answers is opened with all its lanes", async ({ page }) => {
    await page.goto("/?backend=cpu&play=0");
    await expect(compare(page).names).toHaveText(["sinks 4+60"]);
    await drop(page, "run.json", "application/json", readFileSync(new URL("../runs/lighthouse.json", import.meta.url), "utf8"));
    await expect(compare(page).names).toHaveText(["window 128", "sinks 4+124"]);
  });
});

async function drop(page: Page, name: string, type: string, text: string): Promise<void> {
  await page.evaluate(
    ({ name, type, text }) => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File([text], name, { type }));
      document.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
    },
    { name, type, text },
  );
}

test("what happens in the lanes is spoken once, and nothing else is", async ({ page }) => {
  await page.goto("/?backend=cpu&x=take-sinks-away&play=0");
  await expect(parts(page).load).toBeEnabled();
  await page.evaluate(() => {
    const spoken: string[] = [];
    Object.assign(window, { spoken });
    for (const live of document.querySelectorAll("[aria-live]:not([aria-live=off]), [role=status]")) {
      new MutationObserver(() => spoken.push(live.textContent ?? "")).observe(live, { childList: true, subtree: true, characterData: true });
    }
  });
  await compare(page).pace.selectOption("rush");
  await compare(page).act.click();
  await expect(compare(page).place).toHaveText("300 of 300 tokens", { timeout: 30_000 });
  const spoken = () => page.evaluate(() => (window as unknown as { spoken: string[] }).spoken);
  await expect.poll(spoken).toEqual(["The first word has left.", "window 128 is losing the thread."]);
});

test("a link within the page starts nothing again", async ({ page }) => {
  await atEnd(page, "&x=take-sinks-away");
  await page.getByRole("link", { name: "To the figures" }).focus();
  await page.keyboard.press("Enter");
  await expect(page).toHaveURL(/#figures$/);
  await page.waitForTimeout(500);
  await expect(compare(page).place).toHaveText("300 of 300 tokens");
});

test("on a wide screen the page itself does not scroll", async ({ page }) => {
  await page.setViewportSize({ width: 1440, height: 900 });
  for (const query of ["", "&x=how-many", "&view=chat"]) {
    await page.goto(`/?backend=cpu${query}`);
    await expect(page.locator("#cost .stage > svg *").first()).toBeAttached();
    expect(await page.evaluate(() => document.documentElement.scrollHeight)).toBe(900);
  }
});

test.describe("steady", () => {
  test("while it streams nothing moves by itself and no task is long", async ({ page, browser }) => {
    await page.addInitScript(() => {
      const seen = { shifts: 0 };
      Object.assign(window, { seen });
      new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) {
          const { value, hadRecentInput } = entry as PerformanceEntry & { value: number; hadRecentInput: boolean };
          if (!hadRecentInput) seen.shifts += value;
        }
      }).observe({ type: "layout-shift", buffered: true });
    });
    await page.goto("/?backend=cpu&x=take-sinks-away");
    await expect(compare(page).place).toHaveText(/^\d\d/);
    await page.waitForTimeout(2000);
    await compare(page).pace.selectOption("fast");
    await browser.startTracing(page, { categories: ["toplevel", "__metadata"] });
    await expect(compare(page).place).toHaveText("300 of 300 tokens", { timeout: 30_000 });
    const trace = JSON.parse((await browser.stopTracing()).toString()) as { traceEvents: TraceEvent[] };
    const { shifts } = await page.evaluate(() => (window as unknown as { seen: { shifts: number } }).seen);
    const tasks = longest(trace.traceEvents);
    console.log(`layout shift ${shifts}; the longest tasks took ${tasks.slice(0, 5).map((ms) => ms.toFixed(1)).join(", ")} ms`);
    expect(shifts).toBe(0);
    expect(tasks.length).toBeGreaterThan(100);
    expect(tasks[0]).toBeLessThan(50);
  });

  test("10,000 replayed tokens leave heap and document as they were at 1,000", async ({ page }) => {
    test.setTimeout(180_000);
    const words = STORY.split(/(?<=\s)(?=\S)/);
    const text = Array.from({ length: 10_000 }, (_, i) => words[i % words.length]?.trim()).join(" ");
    const { run } = await compared("long", lanes("window:128", "sinks:4+124", "dense"), { mode: "forced", text, from: 0, n: 0 });
    await serve(page, new Map([...runs, ["long", run]]));
    await page.goto("/?backend=cpu&x=long&play=0");
    const { slider } = compare(page);
    const session = await page.context().newCDPSession(page);
    const measure = async (): Promise<{ heap: number; nodes: number }> => {
      await page.waitForTimeout(1500);
      await session.send("HeapProfiler.collectGarbage");
      const { usedSize } = await session.send("Runtime.getHeapUsage");
      return { heap: usedSize, nodes: await page.evaluate(() => document.querySelectorAll("*").length) };
    };
    await expect(slider).toHaveAttribute("max", "10000");
    const to = async (place: number) => {
      await slider.fill(String(place));
      await expect(compare(page).place).toHaveText(`${place.toLocaleString("en")} of 10,000 tokens`, { timeout: 60_000 });
    };
    await to(1000);
    const early = await measure();
    for (let place = 2000; place <= 10_000; place += 1000) await to(place);
    const late = await measure();
    console.log(`heap ${early.heap} to ${late.heap} bytes, ${early.nodes} to ${late.nodes} elements`);
    expect(late.heap - early.heap).toBeLessThan(2 * 1024 * 1024);
    expect(Math.abs(late.nodes - early.nodes)).toBeLessThan(400);
  });
});

interface TraceEvent {
  name: string;
  pid: number;
  tid: number;
  /** Microseconds of the processor. */
  tdur?: number;
  args: { name?: string };
}

/** Tasks of the pages' main threads, the longest first; milliseconds of the processor, whatever else the machine does. */
function longest(events: readonly TraceEvent[]): number[] {
  const mains = events.filter(({ name, args }) => name === "thread_name" && args.name === "CrRendererMain");
  const main = new Set(mains.map(({ pid, tid }) => `${pid} ${tid}`));
  return events
    .filter(({ name, pid, tid }) => /RunTask$/.test(name) && main.has(`${pid} ${tid}`))
    .map(({ tdur = 0 }) => tdur / 1000)
    .sort((a, b) => b - a);
}
